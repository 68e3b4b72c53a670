"""Findings about attention sinks: heads whose sinks do nothing, and heads whose sinks broadcast.

Both kinds of head attend to a few keys. What reaches the tokens tells them apart: little from a sink with a small
value, the same vector everywhere from one with a large value. A block may have heads of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable

from unsmooth.diagnosis.rules.thresholds import threshold
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.results.verdict import Finding
from unsmooth.utils.text import blocks_text

Head = tuple[float, float, float]  # attention to sinks, their value norm, their share of the output


def idle_sinks(view: DiagnosisView) -> Finding | None:
    """Heads attend to a few keys whose values are small, so that they write little: the sinks do nothing."""

    def idle(head: Head) -> bool:
        return head[1] <= threshold("idle_sink_value")

    text = (
        "In {blocks}, {heads} {attend} mostly to keys with small values, so that {they} {write} little. A gate on the "
        "output, or a key without a value, would do this without sinks."
    )
    return _finding(view, "idle_sinks", "Attention sinks do nothing", idle, text)


def broadcasting_sinks(view: DiagnosisView) -> Finding | None:
    """Heads attend to a few keys whose values are not small, and write mostly these values: the sinks broadcast."""

    def broadcasting(head: Head) -> bool:
        return head[1] > threshold("idle_sink_value") and head[2] >= threshold("broadcast_output")

    text = (
        "In {blocks}, {heads} {attend} mostly to a few keys and {write} their values to all tokens. Registers are a "
        "place for what is broadcast, so that patch tokens need not hold it."
    )
    return _finding(view, "broadcasting_sinks", "Attention sinks broadcast", broadcasting, text)


def _finding(view: DiagnosisView, key: str, title: str, belongs: Callable[[Head], bool], text: str) -> Finding | None:
    heads = {
        (b, h): head
        for b in range(view.depth)
        for h, head in _heads(view, b).items()
        if head[0] >= threshold("sink_attention") and belongs(head)
    }
    if not heads:
        return None
    blocks = sorted({b for b, _ in heads})
    b, h = max(heads, key=lambda place: heads[place][0])
    attention, norm, output = heads[b, h]
    where = f"head {h} of block {b}"
    many = len(heads) > 1
    words = {"attend": "attend" if many else "attends", "they": "they" if many else "it",
             "write": "write" if many else "writes"}  # fmt: skip
    evidence = [
        view.evidence("attention_sink", "", f"{attention:.2f} of the attention of {where}", b, "sink_attention",
                      value=attention),
        view.evidence("sink_output", "", f"{output:.2f} of the output of {where}", b,
                      "broadcast_output" if key == "broadcasting_sinks" else "", value=output),
        view.evidence("sink_value_norm", "", f"{norm:.2f} times the norm of other values in {where}", b,
                      "idle_sink_value" if key == "idle_sinks" else "", value=norm),
    ]  # fmt: skip
    shown = text.format(blocks=blocks_text(blocks), heads=f"{len(heads)} head{'s' if many else ''}", **words)
    return Finding(key, title, "note", blocks, shown, evidence)


def _heads(view: DiagnosisView, block: int) -> dict[int, Head]:
    """The heads of a block that have sinks, by their index."""
    columns = [view.heads(key)[block] for key in ("attention_sink", "sink_value_norm", "sink_output")]
    rows = enumerate(zip(*columns, strict=False))
    return {h: (a, v, o) for h, (a, v, o) in rows if a is not None and v is not None and o is not None}
