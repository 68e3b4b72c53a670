"""BERT tokenization of questions, with any vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unsmooth.errors import UnsmoothError, missing_package

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_PIECES = 30522  # as in BERT's vocabulary

Array = np.ndarray[Any, Any]


class Text:
    """Tokenizer with a fixed length: [CLS] … [SEP] [PAD] …"""

    def __init__(self, pieces: Sequence[str], length: int) -> None:
        self.pieces, self.length = list(pieces), length
        self.tokenizer = _tokenizer({piece: i for i, piece in enumerate(self.pieces)})
        self.tokenizer.enable_truncation(length)
        self.tokenizer.enable_padding(length=length, pad_id=self.pieces.index("[PAD]"))

    def encode(self, questions: Sequence[str]) -> tuple[Array, Array]:
        """Token ids and attention mask: two arrays of shape (questions, length)."""
        encodings = self.tokenizer.encode_batch(list(questions))
        ids = np.array([encoding.ids for encoding in encodings], dtype=np.int32)
        return ids, np.array([encoding.attention_mask for encoding in encodings], dtype=np.int8)


def read_vocabulary(path: str | Path) -> list[str]:
    """Read a BERT vocab.txt, one piece per line."""
    try:
        pieces = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UnsmoothError(f"cannot read the vocabulary {path}: {error}") from error
    return check_vocabulary(pieces[:-1] if pieces[-1] == "" else pieces, str(path))


def check_vocabulary(pieces: list[str], name: str) -> list[str]:
    """Raise if special tokens are missing."""
    missing = [piece for piece in SPECIAL[:4] if piece not in pieces]
    if missing:
        raise UnsmoothError(f"{name} is not a BERT vocabulary: {', '.join(missing)} missing")
    return pieces


def build_vocabulary(questions: Iterable[str]) -> list[str]:
    """Vocabulary of questions: special tokens, letters, and words in order of frequency."""
    tokenizer = _tokenizer({piece: i for i, piece in enumerate(SPECIAL)})
    counts: Counter[str] = Counter()
    for question in questions:
        text = tokenizer.normalizer.normalize_str(question)
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    letters = sorted({letter for word in counts for letter in word})
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    words = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    return (pieces + words)[:MAX_PIECES]


def _tokenizer(numbers: dict[str, int]) -> Any:
    try:
        from tokenizers import BertWordPieceTokenizer
    except ImportError as error:
        raise missing_package("the task vqa", "transformers", "hf") from error
    return BertWordPieceTokenizer(vocab=numbers, lowercase=True)
