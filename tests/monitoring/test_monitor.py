"""A monitor sees what a loop trains, changes nothing, and leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from tests.diagnosis.test_probe import traces_left
from tests.support.runs import ended, free_port, in_child
from tests.support.small_hosts import host
from unsmooth import Monitor
from unsmooth.errors import UnsmoothError
from unsmooth.monitoring.alarms import AlarmRaised

STEPS = 5


def batches(count: int = STEPS, size: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    chance = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(size, 3, 32, 32, generator=chance), torch.randint(5, (size,), generator=chance)


def small_model(dropout: float = 0.0) -> nn.Module:
    model = host("deit").train()
    model.pos_drop.p = dropout
    return model


def loop(model: nn.Module, runner: Any = None, accumulate: int = 1, amp: bool = False, lr: float = 1e-3) -> list[float]:
    """A plain training loop, which knows nothing of a monitor. The losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    torch.manual_seed(1)
    for i, (x, y) in enumerate(batches(STEPS * accumulate)):
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = F.cross_entropy((model if runner is None else runner)(x), y)
        loss.backward()
        losses.append(loss.item())
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def left_behind(model: nn.Module) -> dict[str, Any]:
    return traces_left(model) | {"optimizers": (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks))}


def steps_of(monitor: Monitor) -> list[int]:
    return [record.step for record in monitor.history]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("amp", [False, True])
def test_monitoring_changes_nothing(accumulate: int, amp: bool) -> None:
    """With dropout: random numbers, losses and weights are the same, and every hook is removed."""
    plain, watched = small_model(0.3), small_model(0.3)
    before = left_behind(watched)
    expected = loop(plain, accumulate=accumulate, amp=amp)
    with Monitor(watched, every=2, on_alarm="ignore") as monitor:
        assert loop(watched, accumulate=accumulate, amp=amp) == expected
    assert steps_of(monitor) == [0, 2, 4], "optimizer steps are counted, not forward passes"
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert left_behind(watched) == before


def test_batch_norm_statistics_stay() -> None:
    class WithNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.vit = nn.BatchNorm2d(3), host("deit")

        def forward(self, x: Tensor) -> Tensor:
            return self.vit(self.norm(x))

    torch.manual_seed(0)
    plain = WithNorm().train()
    watched = copy.deepcopy(plain)
    loop(plain)
    with Monitor(watched, every=1, on_alarm="ignore") as monitor:
        loop(watched)
    assert len(monitor.history) == STEPS
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), watched.buffers(), strict=True))


def test_an_exception_of_the_loop_leaves_no_trace() -> None:
    model = small_model()
    before = left_behind(model)
    with pytest.raises(RuntimeError), Monitor(model, every=1, on_alarm="ignore"):
        model(torch.randn(2, 4, 32, 32))
    assert left_behind(model) == before


def test_values_are_those_of_the_batch() -> None:
    """Token similarity of the first images of the batch, from its definition, on the weights before the update."""
    model, seen = small_model(), []
    copied = copy.deepcopy(model).eval()
    copied.blocks[1].register_forward_hook(lambda module, args, out: seen.append(out.detach().double().numpy()))
    with Monitor(model, every=100, vitals="token_cosine", images=3, on_alarm="ignore") as monitor:
        loop(model)
    copied(next(batches())[0][:3])
    cosines = []
    for tokens in seen[0]:
        unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        gram = np.abs(unit @ unit.T)
        cosines.append(gram[~np.eye(len(gram), dtype=bool)].mean())
    assert monitor.history[0].vitals["token_cosine"][1] == pytest.approx(np.mean(cosines), rel=1e-4)


def test_mixed_precision_is_that_of_the_loop() -> None:
    """The host runs in bfloat16, vitals are computed in single precision."""
    kinds: set[torch.dtype] = set()
    model = small_model()
    with Monitor(model, every=2, on_alarm="ignore") as half:
        model.blocks[0].attn.qkv.register_forward_hook(
            lambda module, args, out: kinds.add(out.dtype) if not module.training else None
        )
        loop(model, amp=True)
    assert kinds == {torch.bfloat16}
    with Monitor(other := small_model(), every=2, on_alarm="ignore") as full:
        loop(other)
    for a, b in zip(half.history[0].vitals["token_cosine"], full.history[0].vitals["token_cosine"], strict=True):
        assert a == pytest.approx(b, rel=0.02) and a != b


@pytest.mark.parametrize("given", ["the model", "the wrapper", "in place"])
def test_compiled_models(given: str) -> None:
    """No graph break, which fullgraph would report, and no compilation per measurement."""
    torch._dynamo.reset()
    model = small_model()
    compiled: Any = model
    if given == "in place":
        model.compile(fullgraph=True, backend="eager")
    else:
        compiled = torch.compile(model, fullgraph=True, backend="eager")
    before = left_behind(model)
    with Monitor(compiled if given == "the wrapper" else model, every=2, on_alarm="ignore") as monitor:
        loop(model, compiled)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        loop(model, compiled)
    assert steps_of(monitor) == [0, 2, 4, 6, 8]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert left_behind(model) == before


def test_gradient_checkpointing() -> None:
    plain, watched = small_model(), small_model()
    for model in (plain, watched):
        model.set_grad_checkpointing()
    expected = loop(plain)
    with Monitor(watched, every=2, on_alarm="ignore") as monitor:
        assert loop(watched) == expected
    assert steps_of(monitor) == [0, 2, 4]


@pytest.mark.parametrize("given", ["inside", "outside"])
def test_distributed_data_parallel(given: str) -> None:
    model = small_model()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        with Monitor(model if given == "inside" else wrapped, every=2, on_alarm="ignore") as monitor:
            loop(model, wrapped)
    finally:
        dist.destroy_process_group()
    assert steps_of(monitor) == [0, 2, 4]


def _worker(rank: int, port: int, folder: str) -> None:
    """One of two processes that train together, each on its own images."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = small_model()
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    with Monitor(wrapped, every=2, log=f"{folder}/{rank}.jsonl", on_alarm="ignore") as monitor:
        loop(model, wrapped, accumulate=2)
    torch.save((steps_of(monitor), model.state_dict()), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Any) -> None:
    """Only the first measures and records, and both end with the same weights."""
    port = free_port()
    children = [in_child(partial(_worker, rank, port, str(tmp_path))) for rank in range(2)]
    assert [ended(child) for child in children] == [0, 0]
    (first, weights), (second, others) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert (first, second) == ([0, 2, 4], [])
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["0.jsonl"]


def test_other_processes_do_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.monitoring.monitor._is_first_process", lambda: False)
    with Monitor(model := small_model(), every=1, log="tensorboard") as monitor:
        loop(model)
    assert monitor.history == []


def test_a_sharded_model_is_refused() -> None:
    from torch.distributed.fsdp import fully_shard

    model = small_model()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    try:
        fully_shard(model)
        with pytest.raises(UnsmoothError, match="sharded over processes"):
            Monitor(model)
    finally:
        dist.destroy_process_group()


def test_an_optimizer_with_a_closure() -> None:
    """LBFGS and Lightning run the model inside the step."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Monitor(model, every=2, on_alarm="ignore") as monitor:
        for x, y in batches():

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    assert steps_of(monitor) == [0, 2, 4]


def test_other_optimizers_do_not_count() -> None:
    model, other = small_model(), nn.Linear(2, 2)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    second = torch.optim.SGD(list(model.parameters())[:1], lr=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Monitor(model, every=1, on_alarm="ignore") as monitor:
        for x, y in batches(2):
            F.cross_entropy(model(x), y).backward()
            foreign.step()
            optimizer.step()
            second.step()
    assert monitor.steps == 2


def test_steps_by_hand() -> None:
    model = small_model()
    with Monitor(model, every=2, on_alarm="ignore") as monitor:
        for x, _ in batches():
            model(x)
            monitor.step()
    assert steps_of(monitor) == [0, 2, 4]
    with Monitor(model.eval(), every=2, on_alarm="ignore") as monitor:
        for x, _ in batches():
            monitor.step(x)
    assert steps_of(monitor) == [0, 2, 4]


def test_forward_passes_count_if_no_step_is_taken() -> None:
    """As with a gradient scaler that skips every step, because the loss is not finite."""
    model = small_model()
    model.blocks[1].mlp.fc2.weight.data.fill_(float("inf"))
    with Monitor(model, every=2, on_alarm="ignore") as monitor:
        for x, _ in batches(66, size=1):
            model(x)
    assert [(alarm.step, alarm.kind, alarm.block) for alarm in monitor.alarms] == [(65, "non_finite", 1)]


def test_the_block_that_is_not_finite_is_named() -> None:
    model = small_model()
    model.blocks[1].attn.proj.weight.data[0, 0] = float("nan")
    with Monitor(model, on_alarm="raise"), pytest.raises(AlarmRaised, match="block 1 broke first, in its attention"):
        loop(model)


def test_raising_comes_before_the_update() -> None:
    """A gradient that is not finite does not reach the weights."""
    model = small_model()
    model.blocks[0].mlp.fc1.weight.register_hook(lambda grad: grad * float("inf"))
    state = copy.deepcopy(model.state_dict())
    with Monitor(model, on_alarm="raise"), pytest.raises(AlarmRaised, match="block 0 broke first, in the gradient"):
        loop(model)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_what_happens_on_an_alarm() -> None:
    seen: list[Any] = []
    limits = {"max_logit": 0.0}
    for on_alarm in (seen.append, "warn", "ignore"):
        monitor = Monitor(model := small_model(), every=1, alarms=limits, on_alarm=on_alarm)  # type: ignore[arg-type]
        with warnings.catch_warnings(record=True) as caught, monitor:
            warnings.simplefilter("always")
            loop(model)
        assert [alarm.kind for alarm in monitor.alarms] == ["max_logit"], "once while it lasts"
        assert len(caught) == (on_alarm == "warn")
    assert [alarm.kind for alarm in seen] == ["max_logit"]
    with Monitor(model := small_model(), every=1, alarms=False) as monitor:
        loop(model)
    assert monitor.alarms == []


def test_a_copy_of_the_model_is_not_monitored() -> None:
    model = small_model()
    with Monitor(model, every=1, on_alarm="ignore") as monitor:
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other(next(batches())[0])
            assert monitor._image_hook.images is None
        assert set(model.state_dict()) == set(host("deit").state_dict())


def test_nobody_needs_to_hold_it() -> None:
    """The model does. When both are gone, the hooks of torch are removed."""
    gc.collect()
    hooks = len(_global_optimizer_pre_hooks)
    model = small_model()
    alarms: list[Any] = []
    Monitor(model, every=1, alarms={"max_logit": 0.0}, on_alarm=alarms.append)
    gc.collect()
    loop(model)
    assert alarms and len(_global_optimizer_pre_hooks) == hooks + 1
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None and len(_global_optimizer_pre_hooks) == hooks


def test_no_images_are_kept_between_measurements() -> None:
    model = small_model()
    kept: list[Tensor | None] = []
    monitor = Monitor(model, every=3, on_alarm=kept.append)
    for _ in range(2):
        loop(model)
        kept.append(monitor._image_hook.images)
    monitor.close()
    assert kept[-1] is None


def test_a_failure_ends_the_monitor_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("unsmooth.monitoring.monitor.observe", broken)
    model = small_model()
    before = left_behind(model)
    Monitor(model)
    with pytest.warns(UserWarning, match="the monitor stopped at step 0: out of memory"):
        loop(model)
    assert left_behind(model) == before


def test_a_resumed_run_continues() -> None:
    model = small_model()
    with Monitor(model, every=2, on_alarm="ignore") as first:
        loop(model)
    with Monitor(model, every=2, on_alarm="ignore") as second:
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        loop(model)
    assert steps_of(second) == [6, 8]
    earlier = second._alarm_state.earlier  # type: ignore[union-attr]
    assert earlier["max_logit"] == first._alarm_state.earlier["max_logit"], "the first of the whole run"  # type: ignore[union-attr]


def test_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    with Monitor(model := small_model(), every=2, on_alarm="ignore") as monitor:
        loop(model)
    pytest.importorskip("pandas")
    rows = monitor.frame().to_dict("records")
    assert [(row["step"], row["block"]) for row in rows] == [(s, b) for s in (0, 2, 4) for b in (0, 1)]
    assert rows[3]["token_cosine"] == monitor.history[1].vitals["token_cosine"][1]
    assert "max_logit.heads" not in rows[0] and 0 < monitor.share < 1
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsmoothError, match="needs pandas"):
        monitor.frame()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be at least 1 .got 0"),
        ({"images": 0}, "images must be at least 1"),
        ({"vitals": "token_cosin"}, "Closest of .* names: token_cosine,"),
        ({"on_alarm": "rise"}, "Did you mean 'raise'"),
        ({"alarms": {"max_logits": 3}}, "Did you mean 'max_logit'"),
        ({"alarms": {"max_logit": "3"}}, "a number of at least 0"),
        ({"log": "wandbb"}, "Did you mean 'wandb'"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    model = small_model()
    before = left_behind(model)
    with pytest.raises(UnsmoothError, match=message):
        Monitor(model, **options)
    assert left_behind(model) == before


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(UnsmoothError, match="expected a PyTorch module"):
        Monitor("vit_tiny_patch16_224")  # type: ignore[arg-type]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    monitor = Monitor(model)  # nothing says which images it takes, so the first batch decides
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    with pytest.warns(UserWarning, match="the monitor stopped at step 0: .*no attention"):
        monitor.step()
