"""The device that a command runs on."""

from __future__ import annotations

import torch

from unsmooth.errors import UnsmoothError, first_line


def choose_device(name: str | torch.device | None, mps: bool = True) -> torch.device:
    """The device of this name; without a name cuda, mps or cpu, the first that is present.

    Args:
        name: A device, or None or "" to choose one.
        mps: Whether Apple's GPUs may be chosen. Work that needs double precision cannot run there.
    """
    if not name:
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps and _has_mps() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # unknown names, and devices that are absent
        reason = first_line(error)
        raise UnsmoothError(f"device {str(name)!r} cannot be used ({reason}). Use cpu, cuda, cuda:N or mps.") from error
    return device


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_available())
