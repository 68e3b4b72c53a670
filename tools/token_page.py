"""What the tokens of each block are worth: the recorded scores of a real model whose last blocks collapse.

`python -m tools.token_page` draws the figure, which is not part of `make docs`: its bytes depend on matplotlib.
"""

from __future__ import annotations

import json

from tools.markdown import DOCS, RESULTS, page, table, whole
from unsmooth.report.figures import save
from unsmooth.report.token_figure import token_figure
from unsmooth.report.token_names import METRICS, PROBES, TOKENS
from unsmooth.results.evaluation import BlockScore, Evaluation, TokenProbe, TokenScores

RECORD = RESULTS / "dense_saliency_vits14.json"
FIGURE = "images/dense_saliency_vits14.svg"
USED = 9  # the block before the collapse that the diagnosis reports
INTRO = """
Classification accuracy says little about oversmoothing: a classifier can work when all patch tokens are similar.
[`unsmooth evaluate --tokens`](guides/evaluation.md#tokens-by-block) scores the frozen tokens of each block instead.
This page shows it on a real model: a saliency fine-tune of DINOv2 ViT-S/14, whose verdict is
[*collapsing* in blocks 10–11](guides/diagnose.md).

The data are not photographs with masks, because none come with this repository. They are images of 32 and 64 pixels,
enlarged. Sizes were chosen for one CPU core. The mosaics were added after a trial run with 20 scenes had scored little
above chance; all three are shown. Differences between blocks are paired by image; scores of another model
or on other data may order the blocks differently.
"""
TITLES = {
    "scenes": "Scenes of scanned digits",
    "mosaics": "Mosaics of CIFAR-10 images",
    "cifar10": "CIFAR-10",
}
ABOUT = {
    "scenes": "2 × 2 cells with digits on noise, 64 px, resized to 224 px (16 × 16 patches). Classes: background and "
    "ten digits. `unsmooth.papers.small_data` writes them.",
    "mosaics": "2 × 2 images side by side, 64 px, resized to 112 px (8 × 8 patches). The mask is the class of each "
    "image, so a patch token must keep what is at its place apart from its neighbours.",
    "cifar10": "32 px, resized to 112 px (8 × 8 patches). Labels of whole images: the mean of the patch tokens, and "
    "the class token.",
}


def records() -> dict[str, Evaluation]:
    values = json.loads(RECORD.read_text(encoding="utf-8"))
    return {name: Evaluation.from_dict(value, RECORD.name) for name, value in values.items()}


def scores() -> dict[str, TokenScores]:
    """The recorded scores by title."""
    return {TITLES[name]: record.tokens for name, record in records().items() if record.tokens is not None}


def pages() -> dict[str, str]:
    lines = ["# Tokens by block", "", INTRO.strip(), "", f"## Block {USED} against the last block", "", *_summary(), "",
             *_reading(), "",
             f"![Similarity of tokens and scores of probes by block]({FIGURE})", ""]  # fmt: skip
    for name, record in records().items():
        assert record.tokens is not None
        lines += [f"## {TITLES[name]}", "", ABOUT[name], "", _counts(record.tokens), "", *_blocks(record.tokens),
                  f"`{record.provenance.command}`", ""]  # fmt: skip
    lines += ["`python benchmarks/dense.py FOLDER cifar10.npz vits14_saliency_fp16.safetensors` records all of it."]
    return {"tokens.md": page(lines)}


def _summary() -> list[str]:
    """Block 9 against the last block, for every probe."""
    rows = []
    for title, one in scores().items():
        for probe in one.probes:
            best = max(probe.blocks, key=lambda row: row.score)
            rows.append((title, _name(probe), _score(probe[USED]), _score(probe.blocks[-1]), _gain(probe[USED]),
                         f"{best.block}: {_gain(best)}"))  # fmt: skip
    last = next(iter(scores().values())).probes[0].blocks[-1].block
    headings = ("data", "tokens and probe", f"block {USED}, %", f"block {last}, %", f"block {USED} − {last}, points",
                "best block and its gain")  # fmt: skip
    return table(headings, rows)


def _reading() -> list[str]:
    """What the record says. `tests/docs/test_token_page.py` checks each sentence against it."""
    gains = {(name, *key): _gain(one.tokens[key][USED]) for name, one in records().items() if one.tokens
             for key in one.tokens.keys()}  # noqa: SIM118  # fmt: skip
    return [
        f"- **Nearest neighbours lose.** Block {USED} instead of the last block gives, in points, "
        f"{gains['scenes', 'patch', 'knn']} on scenes and {gains['mosaics', 'patch', 'knn']} on mosaics for patch "
        f"tokens, and on CIFAR-10 {gains['cifar10', 'mean', 'knn']} for the mean token and "
        f"{gains['cifar10', 'class', 'knn']} for the class token. All intervals exclude zero.",
        f"- **A linear probe shows no such loss.** The same change gives {gains['scenes', 'patch', 'linear']}, "
        f"{gains['mosaics', 'patch', 'linear']} and {gains['cifar10', 'mean', 'linear']}, whose intervals include "
        f"zero, and {gains['cifar10', 'class', 'linear']} for the class token, which is best in the last block. What "
        "the classes need is still there for a map that is fitted on labels. Cosine may miss it because the tokens "
        "share a large common part; this was not tested.",
        f"- **Block {USED} is not the best one for neighbours.** Patch tokens and the mean token score highest in "
        "block 7, the class token in block 10. These were picked on the same images, and only on mosaics are the "
        f"gains of blocks 7 and {USED} clearly apart.",
        "- **What this does not show.** Blocks differ in more than the similarity of their tokens. This model was "
        "trained for saliency, and its last blocks may have given up classes for that task with or without a collapse; "
        "only a treated model could tell. Nor is it shown to be worse at saliency. The eight intervals are not "
        "corrected for their number.",
        f"- **What to do with this model:** for classes by retrieval, matching or neighbours, take a block from 7 to "
        f"{USED} instead of the last one. Under a linear head, there is no reason to.",
    ]


def _blocks(one: TokenScores) -> list[str]:
    blocks = sorted(one.similarity)
    rows = (
        [block, f"{one.similarity[block]:.2f}", *(_score(probe[block]) for probe in one.probes)] for block in blocks
    )
    return table(
        ("block", "similarity", *(f"{_name(probe)}, {METRICS[probe.metric]}, %" for probe in one.probes)), rows
    )


def _counts(one: TokenScores) -> str:
    tokens = f", {one.memory_tokens:,} patch tokens of them" if one.memory_tokens else ""
    ceiling = (
        f" The most frequent class of each patch scores {100 * max(one.ceiling.values()):.1f} %." if one.ceiling else ""
    )
    return (
        f"{one.images:,} query images; memory: {one.memory_images:,} images{tokens}; {one.neighbours} neighbours; "
        f"{one.classes} classes. Always the most frequent class scores {100 * one.chance:.1f} %.{ceiling}"
    )


def _name(probe: TokenProbe) -> str:
    return f"{TOKENS[probe.tokens]}, {PROBES[probe.probe]}"


def _score(row: BlockScore) -> str:
    low, high = row.interval
    return whole(f"{100 * row.score:.1f} ({100 * low:.1f} to {100 * high:.1f})")


def _gain(row: BlockScore) -> str:
    low, high = row.gain_interval
    return whole(f"{100 * row.gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})".replace("-", "−"))


def figure() -> bytes:
    return save(token_figure(scores()), "svg")


if __name__ == "__main__":
    (DOCS / FIGURE).write_bytes(figure())
