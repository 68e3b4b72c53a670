"""VQAv2 with ViLT: small data in the true format, learned, scored, saved; mistakes are named."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import unsmooth
from tests.support.runs import StopAt, same_state, trainer_state
from tests.support.small_hosts import look_trained
from unsmooth import UnsmoothError
from unsmooth.data.batches import evaluation_batches
from unsmooth.recipes.recipe import load_recipe
from unsmooth.tasks.base import TaskRequest
from unsmooth.tasks.vqa import load_vqa
from unsmooth.tasks.vqa.answers import soft_accuracy
from unsmooth.tasks.vqa.items import image_transform, pad_images
from unsmooth.tasks.vqa.task import open_task
from unsmooth.tasks.vqa.text import Text, build_vocabulary
from unsmooth.training.run import Interrupted, train

HOST = "hf:vilt(image_size=32, patch_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=12)"  # noqa: E501
FEW = {"epochs": 2, "batch_size": 8, "lr": 2e-3, "warmup_epochs": 0, "dropout": 0.0}
COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}
SIZES = ((40, 32), (32, 40), (64, 32), (33, 70))
CPU = torch.device("cpu")


def write_split(folder, split, pictures, seed):
    """ImageDataset of one colour, and three questions about each, as VQAv2 writes them."""
    rng = np.random.default_rng(seed)
    (folder / split).mkdir(parents=True)
    questions, annotations = [], []
    for image in range(1, pictures + 1):
        colour = ("red", "blue")[image % 2]
        noise = rng.integers(-20, 20, (*SIZES[image % 4][::-1], 3))
        pixels = np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / split / f"COCO_{split}_{image:012d}.jpg")
        asked = [
            ("What color is it?", [colour] * 7 + ["purple-ish"] * 3, "other"),
            ("Is this red?", ["yes" if colour == "red" else "no"] * 9 + ["maybe"], "yes/no"),
            ("How many things are there?", ["1"] * 6 + ["2"] * 4, "number"),
        ]
        for turn, (text, answers, kind) in enumerate(asked):
            number = 1000 * image + turn
            questions.append({"image_id": image, "question": text, "question_id": number})
            people = [
                {"answer": answer, "answer_confidence": "yes", "answer_id": i + 1} for i, answer in enumerate(answers)
            ]
            annotations.append({
                "question_type": "what", "multiple_choice_answer": answers[0], "answers": people, "image_id": image,
                "answer_type": kind, "question_id": number,
            })  # fmt: skip
    info = {"info": {"version": "2.0"}, "license": {"name": "none"}, "data_type": "mscoco", "data_subtype": split}
    asked_file = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
    asked_file.write_text(json.dumps({**info, "task_type": "Open-Ended", "questions": questions}))
    (folder / f"v2_mscoco_{split}_annotations.json").write_text(json.dumps({**info, "annotations": annotations}))


@pytest.fixture(scope="module")
def vqa_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vqa")
    write_split(folder, "train2014", 16, 0)
    write_split(folder, "val2014", 6, 1)
    return folder


def opened(data, spec=HOST, recipe=None, **options):
    task = open_task(
        TaskRequest(spec, data, recipe or load_recipe("vqa", FEW), 0, options={"min_answers": "4", **options})
    )
    task.build()
    return task


def test_vocabularies_and_targets_are_of_the_training_questions(vqa_data):
    task = opened(vqa_data)
    assert task.answers == ["1", "blue", "no", "red", "yes"]  # 16 of the first, 8 of each other: then by name
    assert task.counts() == {"train": 48, "val": 18, "answers": 5, "words": len(task.text.pieces)}
    assert task.model.config.num_labels == 5
    assert task.model.config.vocab_size == len(task.text.pieces)
    batch = task.train.collate([task.train[(place, 7)] for place in range(3)])  # of picture 1, which is blue
    assert batch.labels.tolist() == [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 0]]
    assert batch.images.shape[0] == 3
    with pytest.raises(UnsmoothError, match="has 1 answers"):
        opened(vqa_data, min_answers="9")
    assert opened(vqa_data, min_answers="9", answers="train+val").answers == task.answers  # 8 and 3 of each


def test_a_rare_answer_has_a_part_of_the_target_and_questions_without_any_are_left_out(vqa_data, tmp_path):
    shutil.copytree(vqa_data, tmp_path / "data")
    path = tmp_path / "data" / "v2_mscoco_train2014_annotations.json"
    content = json.loads(path.read_text())
    for one, (times, answer) in zip(content["annotations"], ((2, "red"), (0, "")), strict=False):
        people = [answer] * times + ["unheard-of"] * (10 - times)
        one["answers"] = [{"answer": said, "answer_confidence": "no", "answer_id": i} for i, said in enumerate(people)]
    path.write_text(json.dumps(content))
    task = opened(tmp_path / "data")
    assert task.counts()["train"] == 47  # of 48
    labels = task.train.collate([task.train[(0, 1)], task.train[(1, 1)]]).labels
    assert labels[0].tolist() == pytest.approx([0, 0, 0, 0.6, 0])
    assert labels[1].tolist() == [1, 0, 0, 0, 0]


def test_text_is_cut_as_bert_does():
    from transformers import BertTokenizer

    questions = ["What color is it?", "Is the dog's leash café-red, or not?!", "How many?"]
    pieces = build_vocabulary(questions[:2])
    text = Text(pieces, 12)
    ids, mask = text.encode(questions)
    other = BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)})
    wanted = other(questions, padding="max_length", truncation=True, max_length=12)
    assert ids.tolist() == wanted["input_ids"]
    assert mask.tolist() == wanted["attention_mask"]
    assert pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    cut = [pieces[i] for i in ids[2] if i]
    assert cut[0] == "[CLS]"
    assert cut[-1] == "[SEP]"
    assert "##w" in cut  # an unknown word of known letters is spelled


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (500, 500), (1000, 300), (375, 500)])
def test_pictures_have_the_size_of_vilt(size):
    from transformers import ViltConfig

    wide, high = size
    scale = 384 / min(size)
    if max(size) * scale > 1333 / 800 * 384:
        scale = int(1333 / 800 * 384) / max(size)
    wanted = tuple(int(side * scale + 0.5) // 32 * 32 for side in (high, wide))
    picture = Image.fromarray(np.full((high, wide, 3), 255, np.uint8))
    tensor = image_transform(ViltConfig())(picture)
    assert tensor.shape == (3, *wanted)
    assert tensor.min() == tensor.max() == 1  # white, over a mean and deviation of a half


def test_padding_is_zero_and_masked():
    images, mask = pad_images([torch.ones(3, 4, 8), torch.ones(3, 8, 4)])
    assert images.shape == (2, 3, 8, 8)
    assert torch.equal(images[:, 0], mask.float())
    assert mask.sum((1, 2)).tolist() == [32, 32]


def test_padding_changes_nothing_without_broadcast_and_is_in_its_mean(vqa_data):
    def logits(spec):
        model = look_trained(opened(vqa_data, spec).model).eval()
        actual = []
        for turn in range(2):
            task = opened(vqa_data)
            batch = task.val.collate([task.val[(3, None)], *([task.val[(0, None)]] if turn else [])])
            torch.manual_seed(turn)
            actual.append(model(**batch.inputs()).logits[0])
        return actual

    alone, beside = logits(HOST)
    assert torch.allclose(alone, beside, atol=1e-5)
    alone, beside = logits(f"{HOST}+context_broadcast")
    assert not torch.allclose(alone, beside, atol=1e-3)


def test_broadcast_is_the_mean_of_text_picture_and_padding(vqa_data):
    task = opened(vqa_data, f"{HOST}+context_broadcast")
    model = look_trained(task.model).eval()
    layer = model.vilt.encoder.layer[1]
    seen = {}
    layer.register_forward_pre_hook(lambda module, args: seen.update(x=args[0], mask=args[1]))
    layer.register_forward_hook(lambda module, args, out: seen.update(out=out[0]))
    batch = task.val.collate([task.val[(place, None)] for place in (0, 3)])
    model(**batch.inputs())
    with torch.no_grad():
        x = seen["x"] + layer.attention(layer.layernorm_before(seen["x"]), seen["mask"])[0]
        hidden, dense = layer.intermediate(layer.layernorm_after(x)), layer.output.dense
    branch = (hidden.double() @ dense.weight.double().T + dense.bias.double()).detach().numpy()
    assert branch.shape[1] > 12 + 1  # text with its padding, class token, patches
    wanted = x.double().numpy() + (branch + branch.mean(1, keepdims=True)) / 2
    np.testing.assert_allclose(seen["out"].detach().numpy(), wanted, atol=1e-4)


def test_the_score_is_the_official_accuracy_of_the_answers(vqa_data, tmp_path):
    task = opened(vqa_data)
    look_trained(task.model)
    whole = task.score(task.model, evaluation_batches(task.val, 5), CPU, "none")
    again = task.score(task.model, evaluation_batches(task.val, 5), CPU, "none")
    assert whole == again
    questions = {question.number: question for question in task.splits["val"].questions}
    wanted = [soft_accuracy(a, questions[n].answers) for n, a in zip(whole.numbers, whole.answers, strict=True)]
    assert whole.accuracy == wanted
    result = whole.metrics()
    assert result["accuracy"] == pytest.approx(np.mean(wanted))
    assert whole.primary_metric == result["accuracy"]
    for kind, name in (("yes/no", "yes_no"), ("number", "number"), ("other", "other")):
        own = [value for value, n in zip(wanted, whole.numbers, strict=True) if questions[n].kind == kind]
        assert len(own) == 6
        assert result[name] == pytest.approx(np.mean(own))
    shares = [task.score(task.model, evaluation_batches(task.val, 5, rank=r, world=2), CPU, "none") for r in (0, 1)]
    joined = task.merge_scores(shares)
    assert joined.numbers == sorted(questions)
    assert joined.metrics()["accuracy"] == pytest.approx(result["accuracy"], abs=1e-9)
    assert joined.metrics()["loss"] == pytest.approx(result["loss"], rel=1e-4)
    task.save_predictions(joined, tmp_path)
    said = json.loads((tmp_path / "answers.json").read_text())
    assert said[0] == {"question_id": joined.numbers[0], "answer": joined.answers[0]}


def test_the_loss_is_cross_entropy_summed_over_answers(vqa_data):
    task = opened(vqa_data)
    look_trained(task.model).eval()
    batch = task.train.collate([task.train[(place, 3)] for place in range(6)])
    with torch.no_grad():
        torch.manual_seed(0)
        loss = task.loss(task.model, batch).item()
        torch.manual_seed(0)
        z = task.model(**batch.inputs()).logits.double().numpy()
    y = batch.labels.double().numpy()
    p = 1 / (1 + np.exp(-z))
    assert loss == pytest.approx(-(y * np.log(p) + (1 - y) * np.log(1 - p)).sum(1).mean(), rel=1e-5)


def test_a_run_learns_and_one_that_was_cut_ends_bit_equal(vqa_data, tmp_path):
    how = {
        "task": "vqa", "recipe": "vqa", **FEW, "epochs": 4, "dropout": 0.1, "accumulate": 2,
        "options": {"min_answers": "4"},
    }  # fmt: skip
    spec = f"{HOST}+context_broadcast"
    result = train(spec, vqa_data, out=tmp_path / "whole", **how)
    with pytest.raises(Interrupted):
        train(spec, vqa_data, out=tmp_path / "cut", observer=StopAt(1, 3), **how)
    train(spec, vqa_data, out=tmp_path / "cut", **how)
    assert same_state(trainer_state(tmp_path / "whole"), trainer_state(tmp_path / "cut"))
    one, other = (load_file(tmp_path / run / "last" / "model.safetensors") for run in ("whole", "cut"))
    assert same_state(one, other)
    assert (tmp_path / "whole" / "answers.json").read_bytes() == (tmp_path / "cut" / "answers.json").read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["train_loss"] < 0.9 * lines[0]["train_loss"]
    assert result["accuracy"] == lines[-1]["val_accuracy"]
    assert result.best["accuracy"] == max(line["val_accuracy"] for line in lines)
    assert result["number"] > 0.9  # always one thing


def test_what_is_saved_is_loaded_bit_for_bit(vqa_data, tmp_path):
    task = opened(vqa_data, f"{HOST}+context_broadcast(kind=scaled)+attn_scale")
    model = look_trained(task.model).eval()
    task.save(model, tmp_path)
    again = load_vqa(tmp_path)
    assert again.answers == task.answers
    assert again.text.pieces == task.text.pieces
    assert same_state(dict(model.state_dict()), dict(again.model.state_dict()))
    batch = task.val.collate([task.val[(place, None)] for place in range(4)])
    actual = []
    for one in (model, again.model.eval()):
        torch.manual_seed(0)
        actual.append(one(**batch.inputs()).logits)
    assert torch.equal(*actual)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors", ".txt"}
    assert [part.name for part in unsmooth.applied(again.model.vilt).remedies] == ["context_broadcast", "attn_scale"]
    question = task.splits["val"].questions[0]
    with Image.open(vqa_data / task.splits["val"].image_file(question.image)) as picture:
        said = again.ask(picture, question.text)
    single = task.score(model, [task.val.collate([task.val[(0, None)]])], CPU, "none")
    assert said == single.answers[0]


def test_weights_to_start_from_bring_their_words_and_their_head_if_the_answers_are_the_same(vqa_data, tmp_path):
    first = opened(vqa_data)
    model = look_trained(first.model)
    first.save(model, tmp_path / "first")
    own = dict(model.state_dict())
    recipe, options = load_recipe("vqa", FEW), {"min_answers": "4"}
    pretrained = open_task(
        TaskRequest(f"hf:{tmp_path / 'first'}", vqa_data, recipe, 1, pretrained=True, options=options)
    )
    pretrained.build()
    assert same_state(own, dict(pretrained.model.state_dict()))
    assert pretrained.text.pieces == first.text.pieces
    checkpoint = open_task(
        TaskRequest(HOST + "+attn_scale", vqa_data, recipe, 1, checkpoint=tmp_path / "first", options=options)
    )
    checkpoint.build()
    actual = dict(checkpoint.model.state_dict())
    assert all(torch.equal(actual[name], own[name]) for name in own)

    # As many answers, but others: no row of the head may be taken for another answer's.
    config = json.loads((tmp_path / "first" / "config.json").read_text())
    config["id2label"] = {str(i): f"other {i}" for i in range(5)}
    config["label2id"] = {name: int(i) for i, name in config["id2label"].items()}
    (tmp_path / "first" / "config.json").write_text(json.dumps(config))
    for host, how in ((f"hf:{tmp_path / 'first'}", {"pretrained": True}), (HOST, {"checkpoint": tmp_path / "first"})):
        task = open_task(TaskRequest(host, vqa_data, recipe, 1, options=options, **how))
        if "checkpoint" in how:
            with pytest.warns(UserWarning, match="for other answers"):
                task.build()
        else:
            task.build()
        state = task.model.state_dict()
        assert not torch.equal(state["classifier.3.weight"], own["classifier.3.weight"])
        assert torch.equal(state["classifier.0.weight"], own["classifier.0.weight"])


def test_a_broken_picture_is_skipped_and_a_missing_one_named(tmp_path):
    write_split(tmp_path, "train2014", 8, 0)
    write_split(tmp_path, "val2014", 4, 1)
    broken = tmp_path / "train2014" / "COCO_train2014_000000000001.jpg"
    broken.write_bytes(b"no picture")
    task = opened(tmp_path)
    item = task.train[(0, 5)]
    assert item.question_index == 3  # the first question about the next picture
    assert list(item.skipped) == ["train2014/COCO_train2014_000000000001.jpg"]
    batch = task.train.collate([task.train[(0, None)], task.train[(4, None)]])
    assert len(batch) == 1
    assert list(batch.skipped) == ["train2014/COCO_train2014_000000000001.jpg"]
    strict = open_task(
        TaskRequest(HOST, tmp_path, load_recipe("vqa", FEW), 0, strict_data=True, options={"min_answers": "1"})
    )
    strict.build()
    assert "--strict-data" in strict.train.collate([strict.train[(0, 5)]]).fatal
    broken.unlink()
    with pytest.raises(UnsmoothError, match=r"1 of 8 images of train2014 are missing.*COCO_train2014_000000000001.jpg"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("hf:vit", {}, "the task vqa needs hf:vilt .got hf:vit of type vit"),
        ("deit_tiny_patch16_224", {}, "the task vqa needs hf:vilt .got deit_tiny_patch16_224"),
        (HOST, {"vocabulary": "x"}, "vqa has no option 'vocabulary'. Did you mean 'vocab'"),
        (HOST, {"min_answers": "0"}, "min_answers must be at least 1"),
        (HOST, {"min_answers": "1000"}, "has 0 answers .* Use a lower min_answers"),
        (HOST, {"answers": "test"}, "vqa: answers must be one of"),
        (HOST, {"vocab": "nowhere.txt"}, "cannot read the vocabulary nowhere.txt"),
        (HOST.replace("hf:vilt(", "hf:vilt(vocab_size=9, "), {}, "pieces, more than the 9 of"),
        (HOST + "+context_brodcast", {}, "Did you mean 'context_broadcast'"),
    ],
)
def test_mistakes_are_named(vqa_data, spec, options, message):
    with pytest.raises(UnsmoothError, match=message):
        open_task(TaskRequest(spec, vqa_data, load_recipe("vqa"), 0, options={"min_answers": "4", **options}))


def test_data_that_is_not_vqav2_is_refused(vqa_data, tmp_path):
    def attempt(message, **how):
        with pytest.raises(UnsmoothError, match=message):
            open_task(TaskRequest(HOST, tmp_path, load_recipe("vqa"), 0, **how))

    with pytest.raises(UnsmoothError, match=r"the folder .* does not exist"):
        open_task(TaskRequest(HOST, tmp_path / "none", load_recipe("vqa"), 0))
    attempt(r"v2_OpenEnded_mscoco_train2014_questions.json does not exist\. Download VQA v2 from visualqa.org")
    write_split(tmp_path, "train2014", 2, 0)
    annotations = tmp_path / "v2_mscoco_train2014_annotations.json"
    content = json.loads(annotations.read_text())
    missing = content["annotations"].pop()["question_id"]
    annotations.write_text(json.dumps(content))
    attempt(f"question {missing} has no annotation")
    del content["annotations"][0]["answer_type"]
    annotations.write_text(json.dumps(content))
    attempt("an entry has no 'answer_type'")
    annotations.write_text("{}")
    attempt("is not a VQAv2 file with 'annotations'")
    attempt("Use a folder that the task vqa saved", checkpoint=tmp_path)
    attempt("is a model type without weights", pretrained=True)
