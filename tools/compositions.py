"""Remedies × what else is done to models: every pair is run (`make compositions`), recorded and shown as a page."""

# mypy: disable-error-code="union-attr, operator"
# (torch types what a module holds as Tensor | Module)

from __future__ import annotations

import copy
import io
import json
import multiprocessing
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import unsmooth
from tools.markdown import RESULTS, page, table
from unsmooth.errors import UnsmoothError, first_line
from unsmooth.remedies.base import REGISTRY

RECORD = RESULTS / "compositions.json"
HOST = "deit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=48, depth=2, num_classes=5)"
OK = "ok"
# How far outputs may be apart, relative to their norm.
SAME, EIGHT_BITS, HALF, SINGLE = 1e-5, 0.2, 0.06, 1e-4


class Different(Exception):
    """The outputs or gradients differ from those of the treated model alone."""


def treated(remedy: str) -> nn.Module:
    """A small host and remedy with random weights: many remedies do nothing with their initial ones."""
    torch.manual_seed(0)
    model = unsmooth.create_model(HOST)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.3 / parameter[0].numel() ** 0.5)
            elif "norm" not in name:
                parameter.normal_(std=0.2)
        unsmooth.apply(model, remedy)
        for _, part in unsmooth.parts(model):
            for parameter in part.parameters():
                parameter.normal_(std=0.3)
    return model.eval()


def images() -> Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    distance = float((actual.detach().double() - expected.detach().double()).norm() / expected.detach().double().norm())
    if not distance <= tolerance:
        raise Different(f"outputs differ by {distance:.1g}")


def gradients(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(batch).square().mean().backward()
    named = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    return {name: p.grad.clone() for name, p in named.named_parameters() if p.grad is not None}


def same_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-3) -> None:
    if actual.keys() != expected.keys():
        raise Different("other parameters have gradients")
    scale = max(float(value.norm()) for value in expected.values())
    for name, value in expected.items():
        if not float((actual[name] - value).norm()) <= tolerance * scale:
            raise Different(f"the gradient of {name} differs")


def lora(model: nn.Module) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    expected = model(images())
    adapted = inject_adapter_in_model(LoraConfig(r=2, target_modules=["qkv", "proj", "fc1"]), copy.deepcopy(model))
    close(adapted.eval()(images()), expected, SAME)
    adapted(images()).sum().backward()
    if not any("lora_B" in name and p.grad is not None and p.grad.any() for name, p in adapted.named_parameters()):
        raise Different("no gradient reaches the adapters")


def parametrised(normalise: Callable[[nn.Module], Any], exact: bool) -> Callable[[nn.Module], None]:
    def compose(model: nn.Module) -> None:
        expected, changed = model(images()), copy.deepcopy(model)
        for block in changed.blocks:
            for layer in (block.attn.qkv, block.mlp.fc1):
                normalise(layer)
        out = changed(images())
        if exact:
            close(out, expected, SAME)
        elif not out.isfinite().all() or torch.equal(out, expected):
            raise Different("the norm has no effect")
        out.sum().backward()

    return compose


def int8(model: nn.Module) -> None:
    changed = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    close(changed(images()), model(images()), EIGHT_BITS)


def sharded(model: nn.Module) -> None:
    from torch.distributed.fsdp import fully_shard

    expected, changed = gradients(model, images()), copy.deepcopy(model)
    with process_group(0, 1, free_port()):
        for block in changed.blocks:
            fully_shard(block)
        fully_shard(changed)
        actual = gradients(changed, images())
        same_gradients(
            {name: getattr(value, "full_tensor", lambda value=value: value)() for name, value in actual.items()},
            expected,
        )


def checkpointing(model: nn.Module) -> None:
    expected = gradients(model, images())
    changed = copy.deepcopy(model).train()
    model.train()
    expected = gradients(model, images())
    changed.set_grad_checkpointing()
    same_gradients(gradients(changed, images()), expected)


def compiled(model: nn.Module) -> None:
    torch.compiler.reset()
    with torch.no_grad():
        close(torch.compile(model, fullgraph=True, backend="eager")(images()), model(images()), SAME)


def exported(model: nn.Module) -> None:
    close(torch.export.export(model, (images(),), strict=False).module()(images()), model(images()), SAME)


def traced(model: nn.Module) -> None:
    close(torch.jit.trace(model, images())(images()), model(images()), SAME)


def copied(model: nn.Module) -> None:
    expected, other = model(images()), copy.deepcopy(model)
    close(other(images()), expected, 0)
    unsmooth.remove(other)
    close(model(images()), expected, 0)


def forked(model: nn.Module) -> None:
    close(in_child(multiprocessing.get_context("fork"), {"": model})[""], model(images()), SAME)


def spawned(remedies: list[str]) -> dict[str, str]:
    """All remedies in one process, which imports everything anew."""
    models = {remedy: treated(remedy) for remedy in remedies}
    answers = in_child(multiprocessing.get_context("spawn"), models)
    return {key: outcome(lambda key=key: close(answers[key], models[key](images()), SAME)) for key in models}  # type: ignore[misc]


def in_child(context: Any, models: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The outputs of models that are pickled and run in another process."""
    blob = io.BytesIO()
    torch.save(models, blob)
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/answers"
        child = context.Process(target=_answer, args=(blob.getvalue(), place))
        child.start()
        child.join(900)
        if child.exitcode != 0:
            raise Different(f"the process ended with {child.exitcode}")
        answers: dict[str, Tensor] = torch.load(place)
        return answers


def _answer(blob: bytes, place: str) -> None:
    torch.set_num_threads(1)
    models = torch.load(io.BytesIO(blob), weights_only=False)  # written by the parent process
    torch.save({key: model(images()).detach() for key, model in models.items()}, place)


def of_type(dtype: torch.dtype, tolerance: float) -> Callable[[nn.Module], None]:
    def compose(model: nn.Module) -> None:
        close(copy.deepcopy(model).to(dtype)(images().to(dtype)), model(images()), tolerance)

    return compose


def meta(model: nn.Module) -> None:
    out = copy.deepcopy(model).to("meta")(images().to("meta"))
    if out.shape != model(images()).shape or not out.is_meta:
        raise Different("outputs have another size")


COMPOSITIONS: dict[str, Callable[[nn.Module], None]] = {
    "LoRA": lora,
    "weight norm": parametrised(torch.nn.utils.parametrizations.weight_norm, exact=True),
    "spectral norm": parametrised(torch.nn.utils.parametrizations.spectral_norm, exact=False),
    "dynamic int8": int8,
    "fully_shard": sharded,
    "checkpointing": checkpointing,
    "compile": compiled,
    "export": exported,
    "trace": traced,
    "deepcopy": copied,
    "fork": forked,
    "bfloat16": of_type(torch.bfloat16, HALF),
    "float16": of_type(torch.float16, HALF),
    "double": of_type(torch.float64, SINGLE),
    "meta": meta,
}


def outcome(compose: Callable[[], None]) -> str:
    """`ok`, or the reason: our own refusal, or what broke."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compose()
        except Different as error:
            return f"differs: {error}"
        except Exception as error:
            text = first_line(error).partition("unsmooth: ")[2] or first_line(error)
            ours = isinstance(error, UnsmoothError) or "unsmooth: " in first_line(error)
            return f"{'refused' if ours else 'fails'}: {text.partition('. ')[0]}"
    return OK


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class process_group:
    """A group of gloo processes, as a context."""

    def __init__(self, rank: int, world: int, port: int) -> None:
        self.given: dict[str, Any] = {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": world}

    def __enter__(self) -> None:
        dist.init_process_group("gloo", **self.given)

    def __exit__(self, *error: object) -> None:
        dist.destroy_process_group()


def _ddp_worker(rank: int, port: int, remedies: list[str], place: str) -> None:
    torch.set_num_threads(1)
    outcomes = {}
    with process_group(rank, 2, port):
        for remedy in remedies:
            outcomes[remedy] = outcome(lambda remedy=remedy: _ddp(remedy, rank))  # type: ignore[misc]
    if rank == 0:
        Path(place).write_text(json.dumps(outcomes))


def _ddp(remedy: str, rank: int) -> None:
    model = treated(remedy)
    # The mean over processes. The gradient of adder layers is not a sum over images, so that of all images is another.
    one, other = (gradients(model, half) for half in images().split(2))
    expected = {name: (one[name] + other[name]) / 2 for name in one}
    wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)
    actual = gradients(wrapped, images()[2 * rank : 2 * rank + 2])
    same_gradients({name: value for name, value in actual.items() if name in expected}, expected)


def ddp(remedies: list[str]) -> dict[str, str]:
    context, port = multiprocessing.get_context("spawn"), free_port()
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/outcomes.json"
        workers = [context.Process(target=_ddp_worker, args=(rank, port, remedies, place)) for rank in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(1800)
        outcomes: dict[str, str] = json.loads(Path(place).read_text())
        return outcomes


TOGETHER: dict[str, Callable[[list[str]], dict[str, str]]] = {"spawn": spawned, "DDP of two": ddp}


def run_pair(remedy: str, composition: str) -> None:
    COMPOSITIONS[composition](treated(remedy))


def compose_all(remedies: list[str], compositions: list[str], echo: Callable[[str], Any]) -> dict[str, dict[str, str]]:
    """The outcome of every pair, by remedy and composition."""
    record: dict[str, dict[str, str]] = {}
    for remedy in remedies:
        record[remedy] = {name: outcome(partial(run_pair, remedy, name)) for name in compositions}
        failed = {name: text for name, text in record[remedy].items() if text != OK}
        echo(f"{remedy}: {len(compositions) - len(failed)} ok {failed or ''}\n")
    return record


def read_record() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return content


def pages() -> dict[str, str]:
    record = read_record()
    names = [*COMPOSITIONS, *TOGETHER]
    notes: dict[str, int] = {}

    def cell(text: str) -> str:
        if text == OK:
            return "●"
        return f"{'–' if text.startswith('refused') else '✗'} [{notes.setdefault(text, len(notes) + 1)}]"

    rows = [[f"`{remedy}`", *(cell(pairs[name]) for name in names)] for remedy, pairs in record["pairs"].items()]
    count = sum(text == OK for pairs in record["pairs"].values() for text in pairs.values())
    total = sum(len(pairs) for pairs in record["pairs"].values())
    lines = [
        "# Compatibility with model transformations",
        LEGEND.format(count=count, total=total, versions=record["versions"]),
        *table(["remedy", *names], rows), *(f"{number}. {text}" for text, number in notes.items()),
    ]  # fmt: skip
    return {"compositions.md": page(lines)}


LEGEND = """
Each common transformation of a model (LoRA, sharding, quantization, export, …), applied to a treated model. Every
pair was run on a small DeiT of two blocks with random weights; {count} of {total} work ({versions}).

● works: outputs or gradients are those of the treated model · – refused, with the reason below · ✗ does not work.

| column | what is done, and compared |
|---|---|
| LoRA | `peft.inject_adapter_in_model` after the remedy: outputs stay, gradients reach the adapters |
| weight norm, spectral norm | `torch.nn.utils.parametrizations` on `qkv` and `fc1`: outputs stay, or change |
| dynamic int8 | `torch.ao.quantization.quantize_dynamic` of all linear layers: outputs within 20 % |
| fully_shard | FSDP2 of each block in one gloo process: gradients |
| checkpointing | `set_grad_checkpointing()` in training: gradients |
| compile, export, trace | `torch.compile(fullgraph=True)` (eager), `torch.export`, `torch.jit.trace`: outputs |
| deepcopy | outputs of the copy; removing the remedy from it does not change the original |
| spawn, fork | outputs in another process |
| bfloat16, float16, double | converted after the remedy: outputs within 6 %, 6 % and 0.01 % |
| meta | `.to("meta")`: size of the outputs |
| DDP of two | two gloo processes with half of the images each: mean of the gradients of the halves |

`make compositions` runs all pairs again.
"""


def main() -> None:
    torch.set_num_threads(1)
    remedies = sorted(REGISTRY)
    pairs = compose_all(remedies, list(COMPOSITIONS), sys.stdout.write)
    for name, compose in TOGETHER.items():
        for remedy, text in compose(remedies).items():
            pairs[remedy][name] = text
    import peft
    import timm

    versions = f"torch {torch.__version__.split('+')[0]}, timm {timm.__version__}, peft {peft.__version__}"
    RECORD.write_text(
        json.dumps({"host": HOST, "versions": versions, "pairs": pairs}, indent=1, ensure_ascii=False) + "\n", "utf-8"
    )


if __name__ == "__main__":
    main()
