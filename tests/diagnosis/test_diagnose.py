"""Diagnosing as a person would: any host, any images, a result that survives a file, and words for every mistake."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import unsmooth
from tests.support.small_hosts import ALL, CONVMIXER, host
from unsmooth.cli.main import main
from unsmooth.diagnosis.probe import probe
from unsmooth.diagnosis.settings import DiagnoseSettings
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.inputs import image_size
from unsmooth.report.tables import as_text
from unsmooth.results.diagnosis import Diagnosis

SPEC = "deit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=48, depth=3, num_classes=5)"


def pictures(folder: Path, count: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for i in range(count):
        Image.fromarray(generator.integers(0, 255, (40, 48, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    torch.manual_seed(0)
    return unsmooth.diagnose(SPEC, limit=5, command="unsmooth diagnose …")


def images_for(model: nn.Module, count: int = 4) -> torch.Tensor:
    return torch.randn(count, *image_size(model), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [*ALL, CONVMIXER])
def test_every_host_is_diagnosed(name: str) -> None:
    model = host(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    diagnosis = unsmooth.diagnose(model, images_for(model), reference=False)
    assert diagnosis.verdict in ("healthy", "suspicious", "collapsing", "collapsed", "untrained", "unknown")
    assert all(value is not None for value in diagnosis["token_cosine"])
    assert "Verdict" in str(diagnosis)
    json.loads(diagnosis.to_json())
    for key, vital in diagnosis.vitals.items():  # a value or a reason, for every block
        main_part = vital.parts.get(vital.main, [None] * diagnosis.blocks)
        for block in range(diagnosis.blocks):
            assert main_part[block] is not None or vital.skipped.get(block), (key, block)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_indexing(diagnosis: Diagnosis) -> None:
    reading = diagnosis["token_cosine"]
    assert len(reading) == 3 and reading[1] == reading.mean[1]
    assert all(sd > 0 for sd in reading.sd) and reading.images == [5, 5, 5]
    assert all(low <= mean <= high for low, mean, high in zip(reading.low, reading.mean, reading.high, strict=True))
    assert "heads" in diagnosis["attention_entropy"].parts
    assert len(diagnosis["attention_entropy"].part("heads")[0]) == 3
    assert repr(reading).startswith("token_cosine: 0.")
    with pytest.raises(UnsmoothError, match=r"token_cosin.*Did you mean 'token_cosine'"):
        diagnosis["token_cosin"]
    with pytest.raises(UnsmoothError, match="token_cosine has no part 'head'"):
        reading.part("head")
    with pytest.raises(UnsmoothError, match="depth_probe has no value on any block: it needs labels"):
        diagnosis["depth_probe"]


def test_json_and_back(diagnosis: Diagnosis, tmp_path: Path) -> None:
    diagnosis.to_json(tmp_path / "deep" / "x.json")
    again = Diagnosis.from_json(tmp_path / "deep" / "x.json")
    assert again == diagnosis and again.to_dict() == diagnosis.to_dict() and str(again) == str(diagnosis)
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep" / "x.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "cannot read"), ("[]", "is not a diagnosis"), ('{"kind": "diagnosis", "format": 99}', "format 99")],
)
def test_files_that_are_no_diagnosis(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UnsmoothError, match=words):
        Diagnosis.from_json(tmp_path / "x.json")


def test_saving_where_nothing_can_be_written(diagnosis: Diagnosis, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsmoothError, match="cannot write"):
        diagnosis.to_json(tmp_path / "file" / "x.json")
    with pytest.raises(UnsmoothError, match="unknown report format 'docx'"):
        diagnosis.save(tmp_path / "x.docx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


@pytest.fixture(scope="module")
def small_diagnosis() -> Diagnosis:
    """A figure of every vital takes seconds."""
    return unsmooth.diagnose(SPEC, vitals=["token_cosine", "effective_rank"], limit=2, reference=False)


@pytest.mark.parametrize("suffix", ["html", "png", "svg", "pdf"])
def test_saving_a_page_and_figures(small_diagnosis: Diagnosis, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    small_diagnosis.save(path, small_diagnosis)
    start = {"html": b"<!doctype html", "png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().lower().startswith(start.lower())


def test_the_random_reference(diagnosis: Diagnosis) -> None:
    assert diagnosis.reference.how == "created from its spec"
    model = type(host("hf_vit"))(host("hf_vit").config)  # not from a spec
    assert "configuration" in unsmooth.diagnose(model, images_for(model)).reference.how
    model = host("torchvision_vit")
    torch.manual_seed(7)
    draw = torch.rand(1)
    torch.manual_seed(7)
    reference = unsmooth.diagnose(model, images_for(model)).reference
    assert reference.approximate and reference.how.endswith("trained values kept: class_token, encoder.pos_embedding")
    assert torch.equal(torch.rand(1), draw)  # the caller's random state is his own


def test_a_treated_model_shows_what_it_learned() -> None:
    model = host("deit")
    unsmooth.apply(model, ["attn_scale", "feat_scale"][0])
    for _, part in unsmooth.parts(model):
        part.omega.data += torch.tensor([0.1, 0.2, 0.3])
    diagnosis = unsmooth.diagnose(model, images_for(model))
    rows = diagnosis.learned
    assert [row.block for row in rows] == [0, 1]
    assert rows[0].values == pytest.approx([0.1, 0.2, 0.3])
    assert rows[0].by_head == pytest.approx([0.1, 0.2, 0.3])
    assert diagnosis.model.remedies == ["attn_scale"]
    assert diagnosis.model.name.endswith("+attn_scale")


def test_channel_weights_are_averaged_over_the_share_of_each_head() -> None:
    model = host("deit")
    unsmooth.apply(model, "feat_scale")
    for _, part in unsmooth.parts(model):
        part.t.data = torch.arange(len(part.t), dtype=torch.float32)
    found = unsmooth.diagnose(model, images_for(model), "token_cosine", reference=False)
    t = next(row for row in found.learned if row.parameter == "t")
    share = t.count // 3
    assert t.by_head == pytest.approx([h * share + (share - 1) / 2 for h in range(3)])
    assert t.quantiles == (t.count > 64)


def test_the_whole_map_of_the_first_head_after_max_pooling() -> None:
    model = host("deit").eval()
    unsmooth.apply(model, "attn_scale")
    images, maps = images_for(model), list[np.ndarray]()
    with torch.no_grad(), probe(model, on_attention=lambda _, __, call: maps.append(call.map()[0, 0].numpy())):
        model(images)
    found = unsmooth.diagnose(model, images, "token_cosine", reference=False)
    for block, a in enumerate(maps):
        side = -(-len(a) // 4)
        pooled = np.array([
            [a[4 * i : 4 * i + 4, 4 * j : 4 * j + 4].max() for j in range(side)] for i in range(side)
        ])  # fmt: skip
        stored = np.frombuffer(base64.b64decode(found.samples[0].blocks[block].first_head), np.uint8)
        np.testing.assert_allclose(stored.reshape(side, side) / 255, pooled / pooled.max(), atol=1 / 255)


def test_training_mode_hooks_and_exceptions_leave_no_trace() -> None:
    model = host("deit").train()
    flags = [module.training for module in model.modules()]
    unsmooth.diagnose(model, images_for(model), reference=False)
    assert [module.training for module in model.modules()] == flags

    def fail(*_: object) -> None:
        raise RuntimeError("a hook of the user's own")

    handle = model.blocks[1].register_forward_hook(fail)
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    with pytest.raises(UnsmoothError, match="a hook of the user's own"):
        unsmooth.diagnose(model, images_for(model), reference=False)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert [module.training for module in model.modules()] == flags
    handle.remove()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    exact = unsmooth.diagnose(host("deit"), images_for(host("deit")), reference=False)
    diagnosis = unsmooth.diagnose(host("deit").to(dtype), images_for(host("deit")), reference=False)
    assert diagnosis["token_cosine"].mean == pytest.approx(exact["token_cosine"].mean, abs=0.05)


def test_nan_in_the_weights_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    model = host("deit")
    model.blocks[1].mlp.fc1.weight.data[0, 0] = float("nan")
    diagnosis = unsmooth.diagnose(model, images_for(model))
    assert diagnosis.verdict == "broken"
    assert "MLP branch of block 1" in diagnosis.verdict_text
    assert diagnosis["token_cosine"][0] is not None and diagnosis["token_cosine"][1] is None
    diagnosis.to_json()


def test_one_image_and_a_batch_larger_than_the_data() -> None:
    model = host("deit")
    diagnosis = unsmooth.diagnose(model, images_for(model, 1), batch_size=64, reference=False)
    assert diagnosis["token_cosine"].sd == [None, None]
    assert "at least 4 images" in diagnosis.vitals["layer_cka"].skipped[1]


def test_settings_are_an_object_or_fields() -> None:
    model = host("deit")
    settings = DiagnoseSettings(vitals="token_cosine", limit=3, reference=False)
    by_object = unsmooth.diagnose(model, images_for(model), settings=settings)
    by_fields = unsmooth.diagnose(model, images_for(model), "token_cosine", limit=3, reference=False)
    assert by_object.vitals == by_fields.vitals and by_object.images.count == 3
    override = unsmooth.diagnose(model, images_for(model), ["stable_rank"], settings=settings, limit=2)
    assert override.keys() == ["stable_rank"] and override.images.count == 2 and override.reference is None
    with pytest.raises(UnsmoothError, match=r"limt.*Did you mean 'limit'"):
        unsmooth.diagnose(model, images_for(model), limt=3)
    with pytest.raises(UnsmoothError, match=r"limit must be at least 1 \(got 0\)"):
        unsmooth.diagnose(model, images_for(model), limit=0)


def test_blocks_vitals_and_prefix() -> None:
    model = host("dinov2_registers")
    few = unsmooth.diagnose(model, images_for(model), vitals=["token_cosine"], blocks="-1", reference=False)
    assert few.keys() == ["token_cosine"] and few["token_cosine"][0] is None
    out = unsmooth.diagnose(model, images_for(model), vitals="token_cosine", prefix=False, reference=False)
    assert out["token_cosine"][1] != few["token_cosine"][1]
    assert out.images.prefix_tokens is False


def test_labels_give_a_depth_probe(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(12) % 2
    images = (
        generator.integers(0, 120, (12, 32, 32, 3), dtype=np.uint8)
        + (labels * 130).astype(np.uint8)[:, None, None, None]
    )
    np.savez(tmp_path / "x.npz", images=images, labels=labels)
    diagnosis = unsmooth.diagnose(SPEC, tmp_path / "x.npz", vitals="depth_probe", reference=False)
    probe = diagnosis["depth_probe"]
    assert probe.mean == probe.part("high").mean == [1.0] * 3
    assert all(0 < low < 1 for low in probe.part("low"))
    assert len(probe.part("lost.matrix")[0]) == 3
    table = as_text(diagnosis, width=80)
    assert f"of {probe.images[0]} images" in table and f"1.000 {probe.part('low')[0]:.2f}–1.00" in table


MISTAKES = [
    (["diagnose", SPEC, "--images", "nowhere"], "there are no images at 'nowhere'"),
    (["diagnose", SPEC, "--images", "empty"], "holds no images"),
    (["diagnose", SPEC, "--images", "broken"], "has no valid image"),
    (["diagnose", SPEC, "--vitals", "token_cosin"], "names: token_cosine,"),
    (["diagnose", SPEC, "--blocks", "9"], "there is no block 9"),
    (["diagnose", SPEC, "--format", "gif"], "unknown format"),
    (["diagnose", SPEC, "--limit", "0"], "limit must be at least 1"),
    (["diagnose", SPEC, "--batch-size", "0"], "batch_size must be at least 1"),
    (["diagnose", SPEC, "--checkpoint", "nowhere.pth"], "does not exist"),
    (["diagnose", SPEC, SPEC, "--checkpoint", "a"], "got 1 checkpoints for 2 specs"),
    (["diagnose", SPEC, "--out", "file"], "is a file. Use a directory as --out."),
    (["diagnose", "x.json"], "cannot read the diagnosis"),
    (["diagnose", "resnet18"], "ran no attention"),
    (["diagnose", SPEC.replace("depth=3", "depth=3, in_chans=4")], "takes 4 channels"),
    (["list", "vitamins"], "unknown listing 'vitamins'"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_mistakes_are_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.jpg").write_text("no picture")
    (tmp_path / "file").write_text("")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("unsmooth: ") and error.count("\n") == 1
    assert words in error


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures(tmp_path / "pictures")
    (folder / "odd.png").write_text("no picture")
    out = tmp_path / "out"
    assert main(["diagnose", SPEC, "--images", str(folder), "--out", str(out), "--vitals", "token_cosine"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "3 images" in text and "1 skipped" in text and "odd.png" in text and "Verdict" in text
    names = sorted(path.name for path in out.iterdir())
    assert names[-1] == "report.html" and names[0].endswith(".json")
    saved = Diagnosis.from_json(out / names[0])
    assert saved.provenance.command.startswith("unsmooth diagnose ")
    assert main(["diagnose", str(out / names[0]), SPEC, "--images", str(folder), "--json", "--no-reference"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["diagnose", str(out / names[0]), "--out", str(out), "--format", "svg"]) == 0
    assert "depth.svg" in {path.name for path in out.iterdir()}


def test_a_saved_folder_and_a_checkpoint_are_diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = unsmooth.create_model(SPEC + "+attn_scale")
    unsmooth.save(model, tmp_path / "saved")
    torch.save(model.state_dict(), tmp_path / "x.pth")
    for arguments in ([str(tmp_path / "saved")], [SPEC + "+attn_scale", "--checkpoint", str(tmp_path / "x.pth")]):
        assert main(["diagnose", *arguments, "--limit", "2", "--json", "--vitals", "token_cosine"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["vitals"]["token_cosine"]["parts"] == second["vitals"]["token_cosine"]["parts"]


def test_position_embeddings_are_resampled_as_timm_does(tmp_path: Path) -> None:
    large = unsmooth.create_model(SPEC.replace("img_size=32", "img_size=64"))
    torch.save(large.state_dict(), tmp_path / "x.pth")
    small = unsmooth.load(tmp_path / "x.pth", SPEC)
    assert small.pos_embed.shape[1] == 17
    assert torch.equal(small.blocks[0].attn.qkv.weight, large.blocks[0].attn.qkv.weight)


def test_listing_vitals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "vitals"]) == 0
    text = capsys.readouterr().out
    assert all(key in text for key in unsmooth.list_vitals())
    assert "on request" in text
