"""Token similarity and effective rank by block: what collapsed and collapsing mean."""

from __future__ import annotations

from dataclasses import dataclass

from unsmooth.diagnosis.rules.thresholds import threshold
from unsmooth.diagnosis.rules.view import DiagnosisView
from unsmooth.results.verdict import Evidence


@dataclass(frozen=True)
class TokenCurves:
    """Token similarity and effective rank by block, and their limits: by level, and by trend since the best block."""

    cosine: list[float | None]
    share: list[float | None]
    rank: list[float | None]

    @classmethod
    def of(cls, view: DiagnosisView) -> TokenCurves:
        return cls(view.means("token_cosine"), view.means("effective_rank", "share"), view.means("effective_rank"))

    def lowest(self, b: int) -> float:
        """The lowest similarity up to a block."""
        return min(v for v in self.cosine[: b + 1] if v is not None)

    def highest(self, b: int) -> float:
        """The highest share of rank up to a block."""
        return max(v for v in self.share[: b + 1] if v is not None)

    def similarity_limit(self, b: int, rise: str = "similarity_rise") -> float:
        """The similarity from which on a block counts as risen."""
        return max(threshold("least_similarity"), self.lowest(b) + threshold(rise))

    def share_limit(self, b: int, fall: str = "rank_fall") -> float:
        """The share of rank up to which a block counts as fallen."""
        return self.highest(b) * (1 - threshold(fall))

    def high(self, b: int) -> bool:
        """Similarity is that of collapsed tokens."""
        c = self.cosine[b]
        return c is not None and c >= threshold("collapsed_similarity")

    def low(self, b: int) -> bool:
        """Effective rank is that of collapsed tokens."""
        s, r = self.share[b], self.rank[b]
        by_share = s is not None and s <= threshold("collapsed_rank_share")
        return by_share or (r is not None and r <= threshold("collapsed_rank"))

    def risen(self, b: int, rise: str = "similarity_rise") -> bool:
        c = self.cosine[b]
        return c is not None and c >= self.similarity_limit(b, rise)

    def fallen(self, b: int, fall: str = "rank_fall") -> bool:
        s = self.share[b]
        return s is not None and s <= self.share_limit(b, fall)

    def collapsed(self, b: int) -> bool:
        return self.high(b) and self.low(b)

    def collapsing(self, b: int) -> bool:
        return (self.high(b) or self.risen(b)) and (self.low(b) or self.fallen(b))

    def one_sided(self, b: int) -> bool:
        """One of the two is far past its limit."""
        far = self.high(b) or self.low(b) or self.risen(b, "far_rise") or self.fallen(b, "far_fall")
        return far and not self.collapsing(b)

    def evidence(
        self, view: DiagnosisView, b: int, rise: str = "similarity_rise", fall: str = "rank_fall"
    ) -> list[Evidence]:
        """Similarity and rank of a block, each with its limit by level if it is past that, by trend otherwise."""
        c, s = self.cosine[b], self.share[b]
        made = []
        if c is not None:
            best = min((i for i in range(b + 1) if self.cosine[i] is not None), key=lambda i: self.cosine[i] or 0.0)
            since = f", {self.cosine[best]:.2f} in block {best}" if best != b else ""
            name, limit = ("collapsed_similarity", None) if self.high(b) else (rise, self.similarity_limit(b, rise))
            made.append(view.evidence("token_cosine", "", f"{c:.2f} in block {b}{since}", b, name, limit))
        if s is not None:
            best = max((i for i in range(b + 1) if self.share[i] is not None), key=lambda i: self.share[i] or 0.0)
            since = f", {self.share[best]:.2f} in block {best}" if best != b else ""
            text = f"{s:.2f} of its maximum in block {b}{since}"
            r = self.rank[b]
            if self.low(b) and s > threshold("collapsed_rank_share"):  # few tokens: the rank itself is near 1
                return [*made, view.evidence("effective_rank", "", f"{r:.2f} in block {b}", b, "collapsed_rank")]
            name, limit = ("collapsed_rank_share", None) if self.low(b) else (fall, self.share_limit(b, fall))
            made.append(view.evidence("effective_rank", "share", text, b, name, limit))
        return made
