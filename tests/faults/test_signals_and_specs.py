"""A closed terminal, and specs that are nested without end."""

from __future__ import annotations

import os
import signal

import pytest

from unsmooth.errors import UnsmoothError
from unsmooth.spec import parse
from unsmooth.training.signals import SIGNALS, graceful_shutdown


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_for_a_last_checkpoint(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with graceful_shutdown() as flag:
        os.kill(os.getpid(), number)
        assert flag.stop
    assert signal.getsignal(number) is before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_closed_terminal_is_such_a_signal() -> None:
    assert signal.SIGHUP in SIGNALS


def test_lists_without_end_are_one_error() -> None:
    with pytest.raises(UnsmoothError, match="at most 8 lists inside each other"):
        parse(f"vit(depths={'[' * 20_000})")
    assert parse("vit(depths=[[1, 2], [3]])").host.options == {"depths": [[1, 2], [3]]}
