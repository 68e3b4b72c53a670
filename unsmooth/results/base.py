"""What diagnoses, evaluations and trials have in common: one value that goes to JSON and back without loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self

from unsmooth.errors import UnsmoothError
from unsmooth.utils.files import write

FORMAT = 1


class Result:
    """`data` is the JSON value itself."""

    kind: ClassVar[str]
    command: ClassVar[str]  # that makes it

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def to_dict(self) -> dict[str, Any]:
        return self.data

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(values)

    def to_json(self, path: str | Path | None = None) -> str:
        """The result as JSON text, written to a file if one is named."""
        text = json.dumps(self.data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if path is not None:
            write(Path(path), text.encode())
        return text

    @classmethod
    def from_json(cls, path: str | Path) -> Self:
        """Read a result from a file that `to_json` wrote."""
        path = Path(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UnsmoothError(f"cannot read the {cls.kind} in {path}: {reason}") from error
        if not isinstance(data, dict) or data.get("kind") != cls.kind:
            raise UnsmoothError(f"{path} is no {cls.kind}: it was not written by {cls.command}")
        if data.get("format") != FORMAT:
            raise UnsmoothError(
                f"{path} has format {data.get('format')!r}, and this version of unsmooth reads {FORMAT}"
            )
        return cls(data)
