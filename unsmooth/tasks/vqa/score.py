"""VQA's official accuracy of a model, over all questions and by the type of their answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from unsmooth.data.sampling import derive_seed
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast, eval_mode
from unsmooth.tasks.vqa.answers import soft_accuracy
from unsmooth.tasks.vqa.items import VqaBatch
from unsmooth.tasks.vqa.questions import Question

KINDS = {"yes/no": "yes_no", "number": "number", "other": "other"}
HELD = 0x3A5E  # stream of random numbers: the order of patches in validation


@dataclass
class VqaScore:
    """Every answer that was given: its question, and how good it is; and the sum of the losses."""

    numbers: list[int] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    loss: float = 0.0
    skipped: dict[str, str] = field(default_factory=dict)

    def mean(self, kind: str = "") -> float | None:
        """The mean accuracy, of all questions or of one type; None where there is no such question."""
        found = [value for value, own in zip(self.accuracy, self.kinds, strict=True) if kind in ("", own)]
        return math.fsum(found) / len(found) if found else None

    @property
    def primary_metric(self) -> float:
        found = self.mean()
        return -math.inf if found is None else found

    def epoch_metrics(self) -> dict[str, float | None]:
        return {f"val_{name}": value for name, value in self._values().items()}

    def summary(self) -> dict[str, Any]:
        return {**self._values(), "images": len(self.numbers), "skipped": self.skipped}

    def _values(self) -> dict[str, float | None]:
        loss = self.loss / len(self.numbers) if self.numbers else math.nan
        types = {name: self.mean(kind) for kind, name in KINDS.items()}
        return {"accuracy": self.mean(), **types, "loss": loss if math.isfinite(loss) else None}


def score(model: nn.Module, batches: Iterable[VqaBatch], questions: Sequence[Question], answers: Sequence[str],
          device: torch.device, amp: str) -> VqaScore:  # fmt: skip
    found = VqaScore()
    with eval_mode(model):
        for batch in batches:
            found.skipped |= batch.skipped
            if not len(batch):
                continue
            # ViLT draws the order of its patches, and which padding it takes along: of the place, and nothing else.
            torch.default_generator.manual_seed(derive_seed(HELD, int(batch.indices[0])))
            with autocast(amp, device):
                given = model(**batch.to(device).inputs())
            found.loss += given.loss.double().item() * len(batch)
            for place, best in zip(batch.indices.tolist(), given.logits.float().argmax(1).tolist(), strict=True):
                question, answer = questions[place], answers[best]
                found.numbers.append(question.number)
                found.answers.append(answer)
                found.kinds.append(question.kind)
                found.accuracy.append(soft_accuracy(answer, question.answers))
    return found


def merge_scores(scores: Sequence[VqaScore], data: str) -> VqaScore:
    """The answers of several processes as one, in order of their questions."""
    rows = sorted(row for one in scores for row in zip(one.numbers, one.answers, one.kinds, one.accuracy, strict=True))
    if not rows:
        raise UnsmoothError(f"{data} has no validation picture that can be used: all were skipped")
    numbers, answers, kinds, accuracy = (list(column) for column in zip(*rows, strict=True))
    skipped = {name: reason for one in scores for name, reason in one.skipped.items()}
    return VqaScore(numbers, answers, kinds, accuracy, sum(one.loss for one in scores), skipped)
