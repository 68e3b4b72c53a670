"""Several processes share the images of a diagnosis and reach the result of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import unsmooth
from tests.support.runs import HOST, together, torchrun
from tests.support.small_hosts import host, treat
from tests.support.streams import LENGTHS, noted_stream
from unsmooth.cli.main import main
from unsmooth.data.images import Images
from unsmooth.data.random_access import as_images
from unsmooth.diagnosis.diagnose import diagnose
from unsmooth.diagnosis.moments import Moments
from unsmooth.errors import UnsmoothError
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.utils.processes import init_processes

ROUNDING = 2e-5  # relative: results are rounded to 5 digits, and sums of another order may be rounded otherwise


def same(one: Any, other: Any, path: str = "") -> None:
    """Whether two results are equal, numbers to rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            if key != "made":
                same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{path}.{i}")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=ROUNDING, abs=1e-9), path
    else:
        assert one == other, path


def pictures(folder: Path, count: int, broken: tuple[int, ...] = ()) -> Path:
    generator = np.random.default_rng(0)
    for i in range(count):
        path = folder / f"class{i % 3}" / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if i in broken:
            path.write_bytes(b"no image")
        else:
            Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return folder


def by_two(model: Any, images: Any, out: Path, **options: Any) -> list[Diagnosis]:
    """The diagnoses that two processes return."""

    def work(rank: int) -> None:
        processes = init_processes("cpu")
        diagnosis = diagnose(model(), images, processes=processes, progress=False, **options)
        (out / f"{rank}.json").write_text(diagnosis.to_json())
        processes.close()

    assert together(2, work) == [0, 0]
    return [Diagnosis.from_json(out / f"{rank}.json") for rank in range(2)]


def deit() -> torch.nn.Module:
    torch.manual_seed(0)
    return treat(host("deit"), "attn_scale").eval()


@pytest.mark.parametrize("options", [{"vitals": "all"}, {"quick": True}], ids=["all", "quick"])
def test_two_processes_reach_the_diagnosis_of_one(tmp_path: Path, options: dict[str, Any]) -> None:
    """Samples of the first images, sums of minibatch CKA, labels of all images, skipped blocks: all vitals."""
    images = pictures(tmp_path / "images", 21)
    options = {"batch_size": 4, "limit": None, **options}
    alone = diagnose(deit(), images, progress=False, **options)
    shared = by_two(deit, images, tmp_path, **options)
    for diagnosis in shared:
        same(json.loads(alone.to_json()), json.loads(diagnosis.to_json()))
    assert alone.images.count == 21 and (options.get("quick") or (alone["depth_probe"] and alone["layer_cka"]))


def test_broken_images_are_listed_and_do_not_shift_samples(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 19, broken=(1, 4, 5, 6, 7, 13))
    options = {"vitals": "default", "batch_size": 4, "reference": False}
    alone = diagnose(deit(), images, progress=False, **options)
    first, second = by_two(deit, images, tmp_path, **options)
    assert first.images.skipped == second.images.skipped == alone.images.skipped and len(alone.images.skipped) == 6
    assert first.images.count == 13
    one, two = (json.loads(d.to_json())["vitals"] for d in (alone, first))
    for key in one.keys() - {"layer_cka"}:  # it is defined by its batches, of which broken images change the size
        same(one[key], two[key], key)


def test_a_first_process_without_a_valid_image_is_an_error_of_all(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 8, broken=(0, 1, 3, 6))  # the first four by class

    def work(rank: int) -> None:
        processes = init_processes("cpu")
        with pytest.raises(UnsmoothError, match="all images of the first process are broken"):
            diagnose(deit(), images, vitals="token_cosine", batch_size=4, processes=processes, progress=False)
        processes.close()

    assert together(2, work) == [0, 0]


@pytest.mark.parametrize("broken", [(), ((0, 1), (0, 2), (5, 3))], ids=["", "broken"])
def test_each_process_reads_its_part_of_a_stream(tmp_path: Path, broken: tuple[tuple[int, int], ...]) -> None:
    """Of 72 images in 8 shards, the first process takes 40 in 5 batches and the second the other 32."""
    options: dict[str, Any] = {"batch_size": 8, "limit": None, "reference": False}

    def shared_stream(reader: str) -> Images:
        def note(*image: int) -> None:
            with (tmp_path / f"read by {reader}").open("a") as file:
                file.write(f"{image}\n")

        return as_images(noted_stream(note, broken=broken))

    def diagnosed(reader: str, **more: Any) -> Diagnosis:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("unsmooth.data.image_batches.open_images", lambda *name: shared_stream(reader))
            return diagnose(deit(), "the stream", progress=False, **options, **more)

    def work(rank: int) -> None:
        processes = init_processes("cpu")
        (tmp_path / f"{rank}.json").write_text(diagnosed(str(rank), processes=processes).to_json())
        processes.close()

    assert together(2, work) == [0, 0]
    alone = json.loads(diagnosed("one").to_json())
    read = [len((tmp_path / f"read by {reader}").read_text().splitlines()) for reader in ("one", "0", "1")]
    assert read[0] == 72 and read[1] == 40 and 32 <= read[2] <= 32 + max(LENGTHS)
    for rank in range(2):
        shared = json.loads((tmp_path / f"{rank}.json").read_text())
        if broken:  # they make batches of several processes smaller, which define CKA
            for diagnosis in (alone, shared):
                diagnosis["vitals"].pop("layer_cka", None)
        same(alone, shared)


def test_fewer_batches_than_processes(tmp_path: Path) -> None:
    images = torch.randn(3, 3, 32, 32)
    alone = diagnose(deit(), images, progress=False, batch_size=4)
    same(json.loads(alone.to_json()), json.loads(by_two(deit, images, tmp_path, batch_size=4)[1].to_json()))


def test_a_block_that_breaks_on_one_image_is_found_by_all(tmp_path: Path) -> None:
    images = torch.randn(8, 3, 32, 32)
    images[5] = float("nan")  # in a batch of the second process
    alone = diagnose(deit(), images, progress=False, batch_size=4, reference=False)
    shared = by_two(deit, images, tmp_path, batch_size=4, reference=False)[0]
    assert alone.broken is not None and shared.broken == alone.broken
    same(json.loads(alone.to_json()), json.loads(shared.to_json()))


def test_processes_with_other_weights_are_an_error(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        processes = init_processes("cpu")
        model = host("deit")
        torch.manual_seed(rank)
        torch.nn.init.normal_(model.head.weight)
        with pytest.raises(UnsmoothError, match="the processes have different weights"):
            diagnose(model, torch.randn(4, 3, 32, 32), processes=processes, progress=False)
        processes.close()

    assert together(2, work) == [0, 0]


def test_an_error_of_the_first_process_is_one_of_all(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        processes = init_processes("cpu")

        def fail() -> None:
            raise UnsmoothError("the disk is full")

        with pytest.raises(UnsmoothError, match="the disk is full"):
            processes.from_primary(fail)
        assert processes.collect(rank) == ([0, 1] if rank == 0 else [])
        processes.close()

    assert together(2, work) == [0, 0]


def diagnosis_command(tmp_path: Path, name: str, *more: str) -> list[str]:
    images = tmp_path / "images"
    if not images.exists():
        unsmooth.save(deit(), tmp_path / "model")
        pictures(images, 20)
    options = ["--images", str(images), "--limit", "20", "--batch-size", "4", "--json", "--out", str(tmp_path / name)]
    return ["diagnose", str(tmp_path / "model"), *options, *more]


def same_command(tmp_path: Path, alone: tuple[str, str], shared: tuple[str, str]) -> None:
    """What a command printed and wrote, by one process and by two."""
    same(json.loads(alone[0]), json.loads(shared[0]))
    assert {p.name for p in (tmp_path / "one").iterdir()} == {p.name for p in (tmp_path / "two").iterdir()}
    assert shared[1].count("wrote ") == alone[1].count("wrote ") == 2
    assert main(["diagnose", *(str(p) for p in (tmp_path / "two").glob("*.json"))]) == 0


def test_the_command_prints_and_writes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(diagnosis_command(tmp_path, "one", "--quick")) == 0
    alone = capsys.readouterr()
    first, second = torchrun(tmp_path / "logs", *diagnosis_command(tmp_path, "two", "--quick"))
    assert second == ("", "")
    same_command(tmp_path, alone, first)


@pytest.mark.slow
@pytest.mark.full  # the two processes of torchrun load everything again
def test_the_command_of_a_shell_prints_and_writes_once(tmp_path: Path) -> None:
    def output(*start: str, name: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", *start, "unsmooth", *diagnosis_command(tmp_path, name)], check=True, timeout=200,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout, done.stderr

    alone = output(name="one")
    two = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    same_command(tmp_path, alone, output(*two, name="two"))


def test_untrained_weights_are_those_of_the_first_process(tmp_path: Path) -> None:
    """torch seeds each process otherwise."""

    def work(rank: int) -> None:
        torch.manual_seed(rank)
        processes = init_processes("cpu")
        found = diagnose(HOST, progress=False, limit=8, batch_size=2, reference=False, processes=processes)
        torch.manual_seed(0)
        alone = diagnose(HOST, progress=False, limit=8, batch_size=2, reference=False)
        same(json.loads(alone.to_json()), json.loads(found.to_json()))
        processes.close()

    assert together(2, work) == [0, 0]


def test_moments_of_parts_are_those_of_the_whole() -> None:
    values = torch.randn(31, 4, dtype=torch.float64) * 3 + 100
    values[3, 1] = float("nan")
    values[:, 2] = float("inf")
    whole, parts, empty = Moments(), [Moments(), Moments()], Moments()
    for i, chunk in enumerate(values.split(4)):
        whole.add(chunk)
        parts[i % 2].add(chunk)
    for part in (*parts, Moments()):
        empty.merge(part)
    one, other = whole.spread(), empty.spread()
    assert one is not None and other is not None and one.images == other.images == 31
    for a, b in ((one.mean, other.mean), (one.sd, other.sd), (one.low, other.low), (one.high, other.high)):
        assert a == [None if x is None else pytest.approx(x, rel=1e-12) for x in b] and a[2] is None
