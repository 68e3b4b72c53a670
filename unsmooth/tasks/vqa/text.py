"""Questions as numbers: BERT's way of cutting words into pieces, by any vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unsmooth.errors import UnsmoothError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST = 30522  # pieces, as in BERT's own vocabulary

Array = np.ndarray[Any, Any]


class Text:
    """Cuts questions into pieces of a vocabulary, all of one length: [CLS] … [SEP] [PAD] …"""

    def __init__(self, pieces: Sequence[str], length: int) -> None:
        self.pieces, self.length = list(pieces), length
        self.tokenizer = _tokenizer({piece: i for i, piece in enumerate(self.pieces)})
        self.tokenizer.enable_truncation(length)
        self.tokenizer.enable_padding(length=length, pad_id=self.pieces.index("[PAD]"))

    def encode(self, questions: Sequence[str]) -> tuple[Array, Array]:
        """Numbers of the pieces, and 1 where there is one: two arrays, questions × length."""
        found = self.tokenizer.encode_batch(list(questions))
        ids = np.array([one.ids for one in found], dtype=np.int32)
        return ids, np.array([one.attention_mask for one in found], dtype=np.int8)


def read_vocabulary(path: str | Path) -> list[str]:
    """A vocab.txt of BERT: a piece a line."""
    try:
        pieces = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UnsmoothError(f"cannot read the vocabulary {path}: {error}") from error
    return check_vocabulary(pieces[:-1] if pieces[-1] == "" else pieces, str(path))


def check_vocabulary(pieces: list[str], name: str) -> list[str]:
    missing = [piece for piece in SPECIAL[:4] if piece not in pieces]
    if missing:
        raise UnsmoothError(f"{name} is no vocabulary of BERT: it lacks {', '.join(missing)}")
    return pieces


def build_vocabulary(questions: Iterable[str]) -> list[str]:
    """The words of some questions, the most frequent first, behind every letter alone and as a word's later piece."""
    tokenizer = _tokenizer({piece: i for i, piece in enumerate(SPECIAL)})
    counts: Counter[str] = Counter()
    for question in questions:
        text = tokenizer.normalizer.normalize_str(question)
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    letters = sorted({letter for word in counts for letter in word})
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    words = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    return (pieces + words)[:MOST]


def _tokenizer(numbers: dict[str, int]) -> Any:
    try:
        from tokenizers import BertWordPieceTokenizer
    except ImportError as error:
        raise UnsmoothError("Hugging Face hosts need an extra: pip install 'unsmooth[hf]'") from error
    return BertWordPieceTokenizer(vocab=numbers, lowercase=True)
