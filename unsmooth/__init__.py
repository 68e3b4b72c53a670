"""unsmooth: are the tokens of your vision transformer collapsing, and what helps."""

__version__ = "0.1.0"

from unsmooth.create import create_model
from unsmooth.errors import UnsmoothError
from unsmooth.folding import fold
from unsmooth.planning import plan
from unsmooth.record import applied, parts
from unsmooth.remedies import list_remedies
from unsmooth.storage import load, save
from unsmooth.surgery import apply, remove

__all__ = [
    "UnsmoothError",
    "applied",
    "apply",
    "create_model",
    "fold",
    "list_remedies",
    "load",
    "parts",
    "plan",
    "remove",
    "save",
]
