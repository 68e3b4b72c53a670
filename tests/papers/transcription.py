"""The numbers that two papers print in their tables, and five papers in their text, read from the papers alone.

`test_printed_values.py` compares the data files in unsmooth/papers/experiments with it. Correct it only with the paper
at hand, never to make a test pass.

Keys of `Row.values`: top1 (in Tables 1 and 3: the authors' own run), top1_reported (in parentheses: that of the host's
paper), top5, imagenet_v2, imagenet_real, imagenet_a, occlusion and fgsm in %; parameters in millions; macs in billions
(the papers say FLOPs); added_flops in millions (with a plus sign in Tables S5 and S6); images_per_second; layers.
The printed input size is left out: it is 224 in every row. A cell that the text lost or garbled is left out, with a
comment.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A line of a table: backbone or category, method ("plain": the host itself) and the printed numbers."""

    group: str
    arm: str
    values: dict[str, float]


# fmt: off
TABLES: dict[str, list[Row]] = {
    "anti_oversmoothing/table1": [
        Row("DeiT-S, 12 layers", "plain",
            {"layers": 12, "parameters": 22.0, "macs": 4.57, "images_per_second": 1589.4,
             "top1": 79.8, "top1_reported": 79.9}),
        Row("DeiT-S, 12 layers", "AttnScale",
            {"layers": 12, "parameters": 22.0, "macs": 4.57, "images_per_second": 1416.7, "top1": 80.7}),
        Row("DeiT-S, 12 layers", "FeatScale",
            {"layers": 12, "parameters": 22.0, "macs": 4.57, "images_per_second": 1509.9, "top1": 80.9}),
        Row("DeiT-S, 24 layers", "plain",
            {"layers": 24, "parameters": 43.3, "macs": 9.09, "images_per_second": 836.4,
             "top1": 80.5, "top1_reported": 81.0}),
        Row("DeiT-S, 24 layers", "AttnScale",
            {"layers": 24, "parameters": 43.3, "macs": 9.10, "images_per_second": 722.0, "top1": 81.1}),
        Row("DeiT-S, 24 layers", "FeatScale",
            {"layers": 24, "parameters": 43.4, "macs": 9.10, "images_per_second": 772.5, "top1": 81.3}),
        Row("CaiT-S, 24 layers", "plain",
            {"layers": 24, "parameters": 46.9, "macs": 9.33, "images_per_second": 371.9,
             "top1": 82.6, "top1_reported": 82.7}),
        Row("CaiT-S, 24 layers", "AttnScale",
            {"layers": 24, "parameters": 46.9, "macs": 9.34, "images_per_second": 339.0, "top1": 83.2}),
        Row("CaiT-S, 24 layers", "FeatScale",
            {"layers": 24, "parameters": 46.9, "macs": 9.34, "images_per_second": 358.2, "top1": 83.2}),
        Row("Swin-S, 24 layers", "plain",
            {"layers": 24, "parameters": 49.6, "macs": 8.74, "images_per_second": 593.2,
             "top1": 83.0, "top1_reported": 83.0}),
        Row("Swin-S, 24 layers", "AttnScale",
            {"layers": 24, "parameters": 49.6, "macs": 8.75, "images_per_second": 553.4, "top1": 83.4}),
        Row("Swin-S, 24 layers", "FeatScale",
            {"layers": 24, "parameters": 49.6, "macs": 8.75, "images_per_second": 550.3, "top1": 83.5}),
    ],
    "anti_oversmoothing/table2": [
        Row("CNN", "ResNet-152", {"parameters": 230, "layers": 152, "top1": 78.1}),
        Row("CNN", "DenseNet-201", {"parameters": 77, "layers": 201, "top1": 77.6}),
        Row("CNN+ Transformer", "CVT-21", {"parameters": 32, "layers": 21, "top1": 82.5}),
        Row("CNN+ Transformer", "LV-ViT-S", {"parameters": 26, "layers": 16, "top1": 83.3}),
        Row("Transformer", "ViT-S/16", {"parameters": 49, "layers": 12, "top1": 78.1}),
        Row("Transformer", "ViT-B/16", {"parameters": 86, "layers": 12, "top1": 79.8}),
        Row("Transformer", "DeiT-S", {"parameters": 22, "layers": 12, "top1": 79.8}),
        Row("Transformer", "DeiT-S Distilled", {"parameters": 22, "layers": 12, "top1": 81.2}),
        Row("Transformer", "Swin-S", {"parameters": 50, "layers": 12, "top1": 83.0}),  # 24 layers in Table 1
        Row("Transformer", "T2T-ViT-24", {"parameters": 64, "layers": 24, "top1": 82.3}),
        Row("Transformer", "DeepViT-24B", {"parameters": 36, "layers": 24, "top1": 80.1}),
        Row("Transformer", "CaiT-S", {"parameters": 47, "layers": 24, "top1": 82.7}),
        Row("Transformer", "DeiT-S + DiversePatch", {"parameters": 44, "layers": 24, "top1": 82.2}),
        # The cells of this line are shifted by one column: its category is empty and its top-1 fell off the end.
        Row("Ours", "DeiT-S + AttnScale", {"parameters": 43, "layers": 24}),
        Row("Ours", "DeiT-S + FeatScale", {"parameters": 43, "layers": 24, "top1": 81.3}),
        Row("Ours", "CaiT-S + AttnScale", {"parameters": 47, "layers": 24, "top1": 83.2}),
        Row("Ours", "CaiT-S + FeatScale", {"parameters": 47, "layers": 24, "top1": 83.2}),
        Row("Ours", "Swin-S + AttnScale", {"parameters": 50, "layers": 24, "top1": 83.4}),
        Row("Ours", "Swin-S + FeatScale", {"parameters": 50, "layers": 24, "top1": 83.5}),
    ],
    "anti_oversmoothing/table3": [
        Row("CaiT-XXS, 24 layers", "plain",
            {"layers": 24, "parameters": 12.0, "macs": 2.53, "images_per_second": 589.3,
             "top1": 77.5, "top1_reported": 77.6}),
        Row("CaiT-XXS, 24 layers", "AttnScale",
            {"layers": 24, "parameters": 12.0, "macs": 2.53, "images_per_second": 548.1, "top1": 77.8}),
        Row("CaiT-XXS, 24 layers", "FeatScale",
            {"layers": 24, "parameters": 12.0, "macs": 2.53, "images_per_second": 573.5, "top1": 77.8}),
        # The operations of CaiT-S are those that Table 1 prints for Swin-S; Table 1 has 9.33 and 9.34 for CaiT-S.
        Row("CaiT-S, 24 layers", "plain",
            {"layers": 24, "parameters": 46.9, "macs": 8.74, "images_per_second": 371.9,
             "top1": 82.6, "top1_reported": 82.7}),
        Row("CaiT-S, 24 layers", "AttnScale",
            {"layers": 24, "parameters": 46.9, "macs": 8.75, "images_per_second": 339.0, "top1": 82.8}),
        Row("CaiT-S, 24 layers", "FeatScale",
            {"layers": 24, "parameters": 46.9, "macs": 8.75, "images_per_second": 358.2, "top1": 82.9}),
    ],
    "context_broadcasting/table_s1": [  # the hosts carry the mark of distillation, which the text garbles
        Row("ViT-Ti", "plain",
            {"parameters": 5.9, "macs": 1.3, "top1": 74.5, "top5": 91.9, "imagenet_v2": 62.4, "imagenet_real": 82.1}),
        Row("ViT-Ti", "CB",
            {"parameters": 5.9, "macs": 1.3, "top1": 74.7, "top5": 92.3, "imagenet_v2": 62.5, "imagenet_real": 82.3}),
        Row("ViT-Ti", "CB_S",
            {"parameters": 5.9, "macs": 1.3, "top1": 75.3, "top5": 92.5, "imagenet_v2": 63.4, "imagenet_real": 82.8}),
        Row("ViT-S", "plain",
            {"parameters": 22.4, "macs": 4.6, "top1": 81.2, "top5": 95.4, "imagenet_v2": 69.8, "imagenet_real": 86.9}),
        Row("ViT-S", "CB",
            {"parameters": 22.4, "macs": 4.6, "top1": 81.3, "top5": 95.6, "imagenet_v2": 70.2, "imagenet_real": 87.0}),
        Row("ViT-S", "CB_S",
            {"parameters": 22.4, "macs": 4.6, "top1": 81.6, "top5": 95.6, "imagenet_v2": 70.9, "imagenet_real": 87.3}),
        Row("ViT-B", "plain",
            {"parameters": 87.3, "macs": 17.6, "top1": 83.4, "top5": 96.4, "imagenet_v2": 72.2, "imagenet_real": 88.1}),
        Row("ViT-B", "CB",
            {"parameters": 87.3, "macs": 17.6, "top1": 83.5, "top5": 96.5, "imagenet_v2": 72.3, "imagenet_real": 88.1}),
        Row("ViT-B", "CB_S",
            {"parameters": 87.3, "macs": 17.6, "top1": 83.6, "top5": 96.5, "imagenet_v2": 73.4, "imagenet_real": 88.3}),
    ],
    "context_broadcasting/table_s2": [  # distilled, like S1; CB_S comes before CB
        Row("ViT-S", "plain", {"occlusion": 74.6, "imagenet_a": 21.5, "fgsm": 11.8}),
        Row("ViT-S", "CB_S", {"occlusion": 75.1, "imagenet_a": 22.6, "fgsm": 13.0}),
        Row("ViT-S", "CB", {"occlusion": 75.1, "imagenet_a": 23.6, "fgsm": 15.5}),
    ],
    "context_broadcasting/table_s3": [
        Row("PVT-S", "plain", {"top1": 76.7}),  # one line of the text holds both rows and both numbers
        Row("PVT-S", "CB", {"top1": 77.3}),
        Row("LocalViT-Ti", "plain", {"top1": 69.4}),
        # Of the next three rows the text has two lines, both labelled as ours, and two numbers. The tick marks show
        # that the row of plain PVTv2 was merged into one of them; its name and one of three numbers are lost. The two
        # numbers stand here under the labels of their lines, but either of them may be that of plain PVTv2.
        Row("LocalViT-Ti", "CB", {"top1": 72.5}),
        Row("PVTv2", "plain", {}),
        Row("PVTv2", "CB", {"top1": 76.5}),
        Row("Swin-Ti", "plain", {"top1": 79.3}),  # one line of the text holds both rows and both numbers
        Row("Swin-Ti", "CB", {"top1": 79.5}),
    ],
    "context_broadcasting/table_s4": [
        Row("ViT-S", "plain", {"top1": 74.73}),
        Row("ViT-S", "CB", {"top1": 75.43}),
    ],
    "context_broadcasting/table_s5": [
        Row("ViT-S", "plain", {"macs": 1.26, "top1": 79.9, "top5": 95.0}),  # in millions; Table S1 has 4.6 billion
        Row("ViT-S", "CB at MLP", {"added_flops": 0.9, "top1": 80.5, "top5": 95.3}),
        Row("ViT-S", "CB at MSA", {"added_flops": 0.9, "top1": 80.1, "top5": 95.0}),
        Row("ViT-S", "CB at both", {"added_flops": 1.8, "top1": 80.1, "top5": 95.0}),
        Row("ViT-S", "gate at MLP", {"added_flops": 0.9, "top1": 80.4, "top5": 95.1}),
        Row("ViT-S", "gate at MSA", {"added_flops": 0.9, "top1": 80.0, "top5": 95.0}),
        Row("ViT-S", "gate at both", {"added_flops": 1.8, "top1": 80.0, "top5": 95.0}),
        Row("ViT-S", "hybrid at MLP", {"added_flops": 1.8, "top1": 80.5, "top5": 95.0}),
        Row("ViT-S", "hybrid at MSA", {"added_flops": 1.8, "top1": 80.4, "top5": 95.3}),
        Row("ViT-S", "hybrid at both",
            {"added_flops": 3.6}),  # both accuracies are printed as dashes
    ],
    "context_broadcasting/table_s6": [
        Row("ViT-S", "plain", {"macs": 1.26, "top1": 79.9, "top5": 95.0}),  # in millions; Table S1 has 4.6 billion
        Row("ViT-S", "CB at Front", {"added_flops": 0.9, "top1": 79.9, "top5": 94.8}),
        Row("ViT-S", "CB at Mid", {"added_flops": 3.6, "top1": 80.5, "top5": 95.2}),
        Row("ViT-S", "CB at End", {"added_flops": 0.9, "top1": 80.5, "top5": 95.3}),
        Row("ViT-S", "gate at Front", {"added_flops": 0.9, "top1": 80.3, "top5": 94.9}),
        Row("ViT-S", "gate at Mid", {"added_flops": 3.6, "top1": 80.2, "top5": 95.1}),
        Row("ViT-S", "gate at End", {"added_flops": 0.9, "top1": 80.4, "top5": 95.1}),
        Row("ViT-S", "hybrid at Front", {"added_flops": 1.8, "top1": 80.5, "top5": 95.0}),
        Row("ViT-S", "hybrid at Mid", {"added_flops": 7.3, "top1": 80.1, "top5": 95.1}),
        Row("ViT-S", "hybrid at End", {"added_flops": 1.8, "top1": 80.3, "top5": 95.0}),  # at MLP in Table S5: 80.5
    ],
}
# fmt: on

# Gains of top-1 in parentheses, of the rows that are not plain, in printed order.
GAINS: dict[str, list[float]] = {
    "anti_oversmoothing/table1": [0.9, 1.1, 0.6, 0.8, 0.6, 0.6, 0.4, 0.5],
    "anti_oversmoothing/table3": [0.3, 0.3, 0.2, 0.3],
}

# Lines of each table, with its caption, in the text of its paper.
LINES: dict[str, str] = {
    "anti_oversmoothing/table1": "173-187",
    "anti_oversmoothing/table2": "201-222",
    "anti_oversmoothing/table3": "632-640",
    "context_broadcasting/table_s1": "82-93",
    "context_broadcasting/table_s2": "95-100",
    "context_broadcasting/table_s3": "102-109",
    "context_broadcasting/table_s4": "111-115",
    "context_broadcasting/table_s5": "138-151",
    "context_broadcasting/table_s6": "153-166",
}

# Numbers in the running text and in captions: paper, number, what it is. All papers but the first: the supplement.
IN_TEXT: list[tuple[str, float, str]] = [
    ("anti_oversmoothing", 1.1, "largest gain of top-1, % (abstract, line 13)"),
    ("anti_oversmoothing", 32, "layers of a ViT that is worse than one of 24, after DeepViT (line 19)"),
    ("anti_oversmoothing", 24, "layers of a ViT that is better than one of 32, after DeepViT (line 19)"),
    ("anti_oversmoothing", 1.1, "largest gain of top-1 on DeiT, % (line 31)"),
    ("anti_oversmoothing", 0.6, "largest gain of top-1 on CaiT, % (line 31)"),
    ("anti_oversmoothing", 0.5, "largest gain of top-1 on Swin, % (line 31)"),
    ("anti_oversmoothing", 4, "first of the three layers of Figure 2 (line 103)"),
    ("anti_oversmoothing", 8, "second of the three layers of Figure 2 (line 103)"),
    ("anti_oversmoothing", 12, "third of the three layers of Figure 2 (line 103)"),
    ("anti_oversmoothing", 0, "initial value of the scale of AttnScale (line 141)"),
    ("anti_oversmoothing", 1.3, "training images of ImageNet, millions (line 193)"),
    ("anti_oversmoothing", 50, "validation images of ImageNet, thousands (line 193)"),
    ("anti_oversmoothing", 0.2, "dropout rate of DeiT with 24 layers (line 197)"),
    ("anti_oversmoothing", 100, "parameters that AttnScale adds to DeiT with 12 layers: fewer than this (line 199)"),
    ("anti_oversmoothing", 150, "parameters that AttnScale adds to DeiT with 24 layers: fewer than this (line 199)"),
    ("anti_oversmoothing", 0.9, "gain of AttnScale on DeiT with 12 layers, % (line 199)"),
    ("anti_oversmoothing", 0.6, "gain of AttnScale on DeiT with 24 layers, % (line 199)"),
    ("anti_oversmoothing", 1, "gain of FeatScale on DeiT with 12 layers, %; Table 1 has 1.1 (line 199)"),
    ("anti_oversmoothing", 0.8, "gain of FeatScale on DeiT with 24 layers, % (line 199)"),
    ("anti_oversmoothing", 0.6, "gain of Re-attention, % (line 224)"),
    ("anti_oversmoothing", 0.7, "gain of LayerScale, % (line 224)"),
    ("anti_oversmoothing", 0.6, "gain of a late class token, % (line 224)"),
    ("anti_oversmoothing", 0.6, "gain of AttnScale and of FeatScale on CaiT, % (line 224)"),
    ("anti_oversmoothing", 0.2, "gain of fine-tuning: at least this, % (line 224)"),
    ("anti_oversmoothing", 0.5, "gain on Swin, about this, % (line 224)"),
    ("anti_oversmoothing", 50, "parameters of Swin-S, millions (line 224)"),
    ("anti_oversmoothing", 83.5, "top-1 of Swin-B, % (line 224)"),
    ("anti_oversmoothing", 88, "parameters of Swin-B, millions (line 224)"),
    ("anti_oversmoothing", 1, "bound on the differences of scores that Lemma A.3 of Dong et al. needs (D.2, line 553)"),
    ("anti_oversmoothing", 2, "counterexample: first entry of D (D.2, line 559)"),
    ("anti_oversmoothing", 3, "counterexample: second entry of D (D.2, line 559)"),
    ("anti_oversmoothing", 0.8, "counterexample: first entry of softmax(r) (D.2, line 559)"),
    ("anti_oversmoothing", 0.2, "counterexample: second entry of softmax(r) (D.2, line 559)"),
    ("anti_oversmoothing", 4, "counterexample: 1-norm of the product (D.2, line 559)"),
    ("anti_oversmoothing", 3, "counterexample: claimed bound on that norm, which it exceeds (D.2, line 559)"),
    ("anti_oversmoothing", 1, "best weight of the low-pass part (Lemma 8, line 579)"),
    ("anti_oversmoothing", 12, "layers of the DeiT-S checkpoint of Figure 1 (line 599)"),
    ("anti_oversmoothing", 12, "rows (layers) of Figure 5 (line 610)"),
    ("anti_oversmoothing", 6, "columns (heads) of Figure 5 (line 610)"),
    ("anti_oversmoothing", 24, "layers of the DeiT of Figure 4 (line 614)"),
    ("anti_oversmoothing", 12, "layers of the DeiT of Figure 12 (line 624)"),
    ("anti_oversmoothing", 60, "epochs of fine-tuning CaiT, with and without remedies (G.1, line 630)"),
    ("anti_oversmoothing", 5e-5, "learning rate of fine-tuning (G.1, line 630)"),
    ("anti_oversmoothing", 5e-4, "weight decay of fine-tuning (G.1, line 630)"),
    ("anti_oversmoothing", 24, "layers of the DeiT of Figures 9 and 10 (line 646)"),
    ("anti_oversmoothing", 2, "row of Figure 10 with a high-pass map (line 646)"),
    ("anti_oversmoothing", 3, "column of Figure 10 with a high-pass map (line 646)"),
    ("anti_oversmoothing", 12, "row of Figure 10 with a band-pass map (line 646)"),
    ("anti_oversmoothing", 5, "column of Figure 10 with a band-pass map (line 646)"),
    ("anti_oversmoothing", 6, "heads of Figure 6 (line 651)"),
    ("anti_oversmoothing", 6, "heads of Figure 7 (line 656)"),
    ("anti_oversmoothing", 12, "layers of the lower DeiT of Figure 11 (line 660)"),
    ("anti_oversmoothing", 24, "layers of the upper DeiT of Figure 11 (line 660)"),
    ("anti_oversmoothing", 4, "side of the max pooling of Figure 8 (line 665)"),
    ("anti_oversmoothing", 24, "rows (layers) of Figure 9 (line 670)"),
    ("anti_oversmoothing", 6, "columns (heads) of Figure 9 (line 670)"),
    ("anti_oversmoothing", 24, "rows (layers) of Figure 10 (line 675)"),
    ("anti_oversmoothing", 6, "columns (heads) of Figure 10 (line 675)"),
    ("context_broadcasting", 1.28, "training images of ImageNet, millions (line 24)"),
    ("context_broadcasting", 50, "validation images of ImageNet, thousands (line 24)"),
    ("context_broadcasting", 1, "classes of ImageNet, thousands (line 24)"),
    ("context_broadcasting", 10000, "images in each of the three test sets of ImageNet-V2 (line 26)"),
    ("context_broadcasting", 20, "images of ADE20K: more than this, thousands (line 30)"),
    ("context_broadcasting", 204, "COCO images of VQAv2, thousands (line 34)"),
    ("context_broadcasting", 12, "layers of ViT-Ti, ViT-S and ViT-B (line 38)"),
    ("context_broadcasting", 192, "width of ViT-Ti (line 38)"),
    ("context_broadcasting", 384, "width of ViT-S (line 38)"),
    ("context_broadcasting", 768, "width of ViT-B (line 38)"),
    ("context_broadcasting", 1, "lines of code that change, at the end of the MLP (line 38)"),
    ("context_broadcasting", 5, "warm-up epochs of DeiT (line 48)"),
    ("context_broadcasting", 10, "warm-up epochs of ViT-B with CB (line 48)"),
    ("context_broadcasting", 0.2, "drop path of ViT-B with CB in distillation (line 48)"),
    ("context_broadcasting", 0.5, "gain of CB_S under occlusion, points (line 60)"),
    ("context_broadcasting", 1.1, "gain of CB_S on ImageNet-A, points (line 60)"),
    ("context_broadcasting", 2.2, "gain of CB_S under FGSM, points; the rows of Table S2 differ by 1.2 (line 60)"),
    ("context_broadcasting", 0.5, "gain of CB under occlusion, points (line 60)"),
    ("context_broadcasting", 2.1, "gain of CB on ImageNet-A, points (line 60)"),
    ("context_broadcasting", 4.7, "gain of CB under FGSM, points; the rows of Table S2 differ by 3.7 (line 60)"),
    ("context_broadcasting", 12, "heads of DeiT-B in Figure S2 (line 70)"),
    ("context_broadcasting", 120, "epochs of Table S3 (line 72)"),
    ("context_broadcasting", 150, "epochs of LocalViT in Table S3 (footnote, line 80)"),
    ("context_broadcasting", 0.7, "gain of CB on CIFAR-100, points (caption of Table S4, line 115)"),
    ("context_broadcasting", 50000, "training images of CIFAR-100 (line 121)"),
    ("context_broadcasting", 10000, "validation images of CIFAR-100 (line 121)"),
    ("context_broadcasting", 100, "classes of CIFAR-100 (line 121)"),
    ("context_broadcasting", 0.7, "gain of CB on CIFAR-100, points (line 121)"),
    ("context_broadcasting", 0.1, "top-1 of CB above that of the gate, each at its best position, points (line 174)"),
    ("context_broadcasting", 0.5, "operations of CB as a share of those of the hybrid: half, in words (line 174)"),
    ("adder_attention", 0, "mean of the entries of queries and keys (line 25)"),
    ("adder_attention", 1, "variance of the entries of queries and keys (line 25)"),
    ("adder_attention", 2, "variance of the sum of two entries (line 25)"),
    ("adder_attention", 0, "mean of the product of two entries (line 31)"),
    ("adder_attention", 1, "variance of the product of two entries (line 31)"),
    ("adder_attention", 1, "first block of Figure 2 (line 58)"),
    ("adder_attention", 6, "second block of Figure 2 (line 58)"),
    ("adder_attention", 11, "third block of Figure 2 (line 58)"),
    ("adder_attention", 0, "head of Figure 2 (line 58)"),
    ("adder_attention", 1, "increase of each singular value by the identity (line 71)"),
    ("adder_attention", 0.9, "share of the singular values that defines the equivalent rank (line 119)"),
    ("adder_attention", 3, "layers of Figure 3 (line 123)"),
    ("always_skip_attention", 0, "mean of the entries of X (in words, line 53)"),
    ("always_skip_attention", 1, "smallest singular value of X: below this, largest: above it (line 53)"),
    ("always_skip_attention", 3, "data sets of Figure 6 (in words, line 82)"),
    ("augmented_shortcuts", 2, "ratio of γ to γ' (line 38)"),
    ("augmented_shortcuts", 1, "Lipschitz constant of AugMLP: usually above this (line 64)"),
]  # fmt: skip
