"""Tensors that one block of a forward pass keeps for later blocks.

They belong to the forward pass, not to the module: with gradient checkpointing a block runs again in the backward pass,
maybe after other forward passes, and must read what it read before. So they are kept with the tokens between the
blocks, which checkpointing keeps too.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

MARK = "_unsmooth_carried"  # attribute of tokens: what is carried with them


def is_recomputed() -> bool:
    """Whether a checkpointed block runs again in the backward pass."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class Carried:
    """One tensor that is carried from block to block. A copy starts empty, and threads do not see each other's."""

    def __init__(self) -> None:
        self._compiled: Tensor | None = None  # a compiled graph is of one forward pass
        self._local = threading.local()

    def __reduce__(self) -> Any:
        return Carried, ()

    def put(self, value: Tensor) -> None:
        """Keep a tensor for the blocks that run next in this thread."""
        if torch.compiler.is_compiling():
            self._compiled = value
        else:
            self._local.value = value

    def latest(self) -> Tensor | None:
        """The value that was put last in this thread."""
        value: Tensor | None = self._compiled if torch.compiler.is_compiling() else getattr(self._local, "value", None)
        return value

    def clear(self) -> None:
        self._compiled = self._local.value = None

    def leave(self, tokens: Tensor) -> None:
        """Keep the latest value with the tokens that leave a block."""
        if not torch.compiler.is_compiling():
            tokens.__dict__.setdefault(MARK, {})[self] = self.latest()

    def enter(self, tokens: Tensor) -> Tensor | None:
        """The value for the tokens that enter a block, which is the latest one from now on.

        Raises:
            RuntimeError: The block runs again in the backward pass, and the tokens are not those of its first run.
        """
        if torch.compiler.is_compiling():
            return self._compiled
        known = tokens.__dict__.get(MARK, {})
        if self in known:
            self._local.value = known[self]
        elif is_recomputed():
            raise RuntimeError(
                "unsmooth: a checkpointed block runs again, and what an earlier block kept for it is not known: its "
                "tokens are a copy. Use gradient checkpointing with use_reentrant=False, around whole blocks."
            )
        else:
            self.leave(tokens)  # a host may change the tokens between its blocks; a block that runs again gets these
        return self.latest()


def pass_on(tokens: Tensor, changed: Tensor) -> Tensor:
    """The changed tokens, with what is carried with the tokens."""
    if not torch.compiler.is_compiling() and MARK in tokens.__dict__ and changed is not tokens:
        changed.__dict__[MARK] = {**tokens.__dict__[MARK], **changed.__dict__.get(MARK, {})}
    return changed
