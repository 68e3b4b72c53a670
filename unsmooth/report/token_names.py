"""Names of kinds of token, probes and metrics of token scores."""

from __future__ import annotations

TOKENS = {"patch": "patch tokens", "mean": "mean token", "class": "class token"}
PROBES = {"knn": "kNN", "linear": "linear"}
METRICS = {"miou": "mIoU", "accuracy": "accuracy"}
