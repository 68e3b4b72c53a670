"""Nothing is lost: killed, interrupted, out of disk or diverged, a run keeps its last good state and goes on."""

from __future__ import annotations

import json
import os
import resource
import signal

import pytest
import torch
from safetensors.torch import load_file

from tests.support.kill_points import KILL_POINTS, kill_at
from tests.support.runs import HOST, RICH, ended, in_child, same_state, small_run, trainer_state
from unsmooth import UnsmoothError
from unsmooth.training.run import Diverged, Interrupted, default_run_dir

SPEC = HOST + "+attn_scale+augmented_shortcut"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "uninterrupted"
    assert ended(in_child(lambda: small_run(out, SPEC, RICH))) == 0
    return out


def same_run(one, other):
    assert same_state(trainer_state(one), trainer_state(other))
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    for name in ("last", "best"):
        a, b = (load_file(run / name / "model.safetensors") for run in (one, other))
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert (one / "scores.npz").read_bytes() == (other / "scores.npz").read_bytes()
    assert not list(other.rglob("*.tmp"))


# tests/faults/test_kills.py kills a smaller run at every file-system event.
POINTS = [pytest.param(name, marks=pytest.mark.full if i >= 5 else ()) for i, name in enumerate(KILL_POINTS)]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_resumes_bit_equal(uninterrupted, tmp_path, point):
    """A checkpoint after every step, so that every kind of file is in flight at some point."""

    def killed():
        kill_at(point)
        small_run(tmp_path / "run", SPEC, RICH, save_every=0)

    assert ended(in_child(killed)) == -signal.SIGKILL, "the run did not reach this point"
    assert ended(in_child(lambda: small_run(tmp_path / "run", SPEC, RICH))) == 0
    same_run(uninterrupted, tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_saves(uninterrupted, tmp_path, number):
    def work():
        class Stopper:
            def begin(self, epochs, steps, epoch):
                pass

            def step(self, epoch, step):
                if (epoch, step) == (1, 2):
                    os.kill(os.getpid(), number)

            def epoch(self, line):
                pass

        with pytest.raises(Interrupted, match="Repeat the command to resume"):
            small_run(tmp_path / "run", SPEC, RICH, observer=Stopper())

    assert ended(in_child(work)) == 0
    state = trainer_state(tmp_path / "run")
    assert (state["epoch"], state["step"]) == (1, 2)
    assert ended(in_child(lambda: small_run(tmp_path / "run", SPEC, RICH))) == 0
    same_run(uninterrupted, tmp_path / "run")


def test_workers_do_not_change_a_run(uninterrupted, tmp_path):
    assert ended(in_child(lambda: small_run(tmp_path, SPEC, RICH, workers=2))) == 0
    same_run(uninterrupted, tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    with pytest.raises(Interrupted):
        small_run(tmp_path / "run", observer=_StopAt(0, 2))
    before = (tmp_path / "run" / "state.safetensors").read_bytes()

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))  # writing stops in the middle
        with pytest.raises(
            UnsmoothError, match=r"cannot write .*state\.safetensors.*last good checkpoint is unchanged"
        ):
            small_run(tmp_path / "run", save_every=0)

    assert ended(in_child(work)) == 0
    assert (tmp_path / "run" / "state.safetensors").read_bytes() == before
    assert not list((tmp_path / "run").rglob("*.tmp"))
    small_run(tmp_path / "run")
    small_run(tmp_path / "whole")
    same_run(tmp_path / "whole", tmp_path / "run")


class _StopAt:
    def __init__(self, epoch, step):
        self.at = (epoch, step)

    def begin(self, epochs, steps, epoch):
        pass

    def step(self, epoch, step):
        if (epoch, step) == self.at:
            os.kill(os.getpid(), signal.SIGINT)

    def epoch(self, line):
        pass


def test_a_loss_that_is_not_finite_names_the_block_and_keeps_the_state(tmp_path, monkeypatch):
    from unsmooth.training import trainer

    with pytest.raises(Interrupted):
        small_run(tmp_path, observer=_StopAt(0, 3))
    good = (tmp_path / "state.safetensors").read_bytes()
    whole = trainer.Trainer.restore

    def poisoned(self, state):
        whole(self, state)
        with torch.no_grad():
            self.model.blocks[1].mlp.fc1.weight.mul_(float("inf"))

    monkeypatch.setattr(trainer.Trainer, "restore", poisoned)
    with pytest.raises(
        Diverged,
        match=r"not finite at step 4 of epoch 1: block 1 broke first, in its MLP branch; the weight .*; the last",
    ):
        small_run(tmp_path)
    assert (tmp_path / "state.safetensors").read_bytes() == good


def test_a_gradient_that_is_not_finite_names_the_block_it_was_born_in(tmp_path, monkeypatch):
    from unsmooth.training import trainer

    build = trainer.make_optimizer

    def poisoned(model, recipe):
        model.blocks[1].mlp.fc2.register_full_backward_hook(lambda m, grads, out: (grads[0] * float("nan"),))
        return build(model, recipe)

    monkeypatch.setattr(trainer, "make_optimizer", poisoned)
    for clip in (0.0, 1.0):
        with pytest.raises(Diverged, match=r"the gradient is not finite at step 1 of epoch 1: block 1 broke first"):
            small_run(tmp_path / str(clip), fields={"clip_grad": clip})


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    from unsmooth.training import trainer

    step = trainer.Trainer._step

    def last_step_breaks(self, batch):
        step(self, batch)
        if self.step == self.batches.steps - 1:
            with torch.no_grad():
                self.model.blocks[0].attn.qkv.weight[0, 0] = float("nan")

    monkeypatch.setattr(trainer.Trainer, "_step", last_step_breaks)
    with pytest.raises(
        Diverged,
        match=r"block 0 broke first, in its attention branch; .*; there is no checkpoint yet",
    ):
        small_run(tmp_path)
    assert not (tmp_path / "state.safetensors").exists()
    assert not (tmp_path / "best").exists() and not (tmp_path / "metrics.jsonl").read_text()


def test_another_recipe_is_shown_not_mixed_in(tmp_path):
    small_run(tmp_path)
    with pytest.raises(
        UnsmoothError, match=r"holds another run \(lr was 0.002 and is 0.5\)\. Repeat its command, or use another"
    ):
        small_run(tmp_path, fields={"lr": 0.5})
    with pytest.raises(UnsmoothError, match="seed was 0 and is 1"):
        small_run(tmp_path, seed=1)
    with pytest.raises(UnsmoothError, match="spec was"):
        small_run(tmp_path, HOST + "+attn_scale")


def test_a_run_that_is_done_gives_its_result_at_once(tmp_path, monkeypatch):
    first = small_run(tmp_path)
    monkeypatch.setattr("unsmooth.training.run._Run", None)
    assert small_run(tmp_path) == first
    assert first.to_dict() == json.loads((tmp_path / "result.json").read_text())


@pytest.mark.parametrize("workers", [0, 1])
def test_two_processes_cannot_have_one_folder(tmp_path, workers):
    def other():
        with pytest.raises(UnsmoothError, match="another process is training in"):
            small_run(tmp_path)

    class Second:
        def begin(self, epochs, steps, epoch):
            assert ended(in_child(other)) == 0

        def step(self, epoch, step):
            pass

        def epoch(self, line):
            pass

    small_run(tmp_path, observer=Second(), workers=workers)


def test_processes_that_read_images_do_not_keep_the_folder(tmp_path):
    """After a kill, a process that reads images may live on for seconds; the same command must not have to wait."""

    def killed():
        kill_at("after the third checkpoint is renamed")
        small_run(tmp_path, fields={"epochs": 500}, workers=2)

    assert ended(in_child(killed)) == -signal.SIGKILL
    with pytest.raises(Interrupted):
        small_run(tmp_path, fields={"epochs": 500}, observer=_StopAt(trainer_state(tmp_path)["epoch"], 2))


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UnsmoothError, match="is not empty and holds no run"):
        small_run(tmp_path)
    with pytest.raises(UnsmoothError, match=r"is a file\. Use a directory as out \(--out\)"):
        small_run(tmp_path / "thesis.tex")
    with pytest.raises(UnsmoothError, match="cannot write to"):
        small_run(tmp_path / "thesis.tex" / "run")


def test_a_folder_without_a_checkpoint_is_begun_anew(tmp_path):
    """A mistake that shows in the first step must not keep the corrected command out."""
    small_run(tmp_path / "other")
    settings = json.loads((tmp_path / "other" / "run.json").read_text())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({**settings, "seed": 7}))
    small_run(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["seed"] == 0


def test_folders_of_long_specs_are_told_apart():
    long = f"{HOST[:-1]}, {', '.join(f'option_{i}={i}' for i in range(20))})"
    names = [default_run_dir(long + remedy, "digits", seed).name for remedy in ("", "+attn_scale") for seed in (0, 1)]
    assert len(set(names)) == 4
    assert max(map(len, names)) <= 120
