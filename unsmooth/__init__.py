"""unsmooth: are the tokens of your vision transformer collapsing, and what helps."""

__version__ = "0.1.0"

from unsmooth.auxiliary import auxiliary_loss
from unsmooth.create import create_model
from unsmooth.diagnose import diagnose
from unsmooth.diagnosis import Diagnosis
from unsmooth.errors import UnsmoothError
from unsmooth.evaluation.bench import bench
from unsmooth.evaluation.evaluate import evaluate
from unsmooth.folding import fold
from unsmooth.importing import import_checkpoint
from unsmooth.planning import plan
from unsmooth.record import applied, parts
from unsmooth.remedies import list_remedies
from unsmooth.storage import load, save
from unsmooth.surgery import apply, remove
from unsmooth.training.train import train
from unsmooth.trial.compare import compare
from unsmooth.vitals import list_vitals

__all__ = [
    "Diagnosis",
    "UnsmoothError",
    "applied",
    "apply",
    "auxiliary_loss",
    "bench",
    "compare",
    "create_model",
    "diagnose",
    "evaluate",
    "fold",
    "import_checkpoint",
    "list_remedies",
    "list_vitals",
    "load",
    "parts",
    "plan",
    "remove",
    "save",
    "train",
]
