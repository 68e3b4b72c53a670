"""Official VQA accuracy of a model, for all questions and by answer type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from unsmooth.data.sampling import derive_seed
from unsmooth.errors import UnsmoothError
from unsmooth.hosts.modes import autocast, eval_mode
from unsmooth.results.training import MetricValue
from unsmooth.tasks.vqa.answers import soft_accuracy
from unsmooth.tasks.vqa.items import VqaBatch
from unsmooth.tasks.vqa.questions import Question

KINDS = {"yes/no": "yes_no", "number": "number", "other": "other"}
VALIDATION = 0x3A5E  # stream of random numbers: order of patches in validation


@dataclass
class VqaScore:
    """Predicted answers with the ids and types of their questions and their accuracies, and the sum of the losses."""

    numbers: list[int] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    loss: float = 0.0
    skipped: dict[str, str] = field(default_factory=dict)

    def mean(self, kind: str = "") -> float | None:
        """Mean accuracy of all questions or of one type; None if there are none."""
        values = [value for value, own in zip(self.accuracy, self.kinds, strict=True) if kind in ("", own)]
        return math.fsum(values) / len(values) if values else None

    @property
    def images(self) -> int:
        """Number of questions."""
        return len(self.numbers)

    @property
    def primary_metric(self) -> float:
        mean = self.mean()
        return -math.inf if mean is None else mean

    def epoch_metrics(self) -> dict[str, MetricValue]:
        return {f"val_{name}": value for name, value in self.metrics().items()}

    def metrics(self) -> dict[str, MetricValue]:
        loss = self.loss / len(self.numbers) if self.numbers else math.nan
        types = {name: self.mean(kind) for kind, name in KINDS.items()}
        return {"accuracy": self.mean(), **types, "loss": loss if math.isfinite(loss) else None}


def score(model: nn.Module, batches: Iterable[VqaBatch], questions: Sequence[Question], answers: Sequence[str],
          device: torch.device, amp: str) -> VqaScore:  # fmt: skip
    """Score a model on batches, without changing its mode or gradients."""
    total = VqaScore()
    with eval_mode(model):
        for batch in batches:
            total.skipped |= batch.skipped
            if not len(batch):
                continue
            # ViLT samples the order of patches and padding: seeded by the index, so that scores are reproducible.
            torch.default_generator.manual_seed(derive_seed(VALIDATION, int(batch.indices[0])))
            with autocast(amp, device):
                output = model(**batch.to(device).inputs())
            total.loss += output.loss.double().item() * len(batch)
            for index, best in zip(batch.indices.tolist(), output.logits.float().argmax(1).tolist(), strict=True):
                question, answer = questions[index], answers[best]
                total.numbers.append(question.number)
                total.answers.append(answer)
                total.kinds.append(question.kind)
                total.accuracy.append(soft_accuracy(answer, question.answers))
    return total


def merge_scores(scores: Sequence[VqaScore], data: str) -> VqaScore:
    """Merge the answers of several processes, in the order of question ids."""
    rows = sorted(
        row for each in scores for row in zip(each.numbers, each.answers, each.kinds, each.accuracy, strict=True)
    )
    if not rows:
        raise UnsmoothError(f"{data} has no valid validation image: all were skipped")
    numbers, answers, kinds, accuracy = (list(column) for column in zip(*rows, strict=True))
    skipped = {name: reason for each in scores for name, reason in each.skipped.items()}
    return VqaScore(numbers, answers, kinds, accuracy, sum(each.loss for each in scores), skipped)
