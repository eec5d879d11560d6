"""Raw items and questions to numbers, and answer numbers back to answers; saved with every model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, TypeVar
from zlib import crc32

from remem.data.babi_format import words_of
from remem.data.words import tokenize
from remem.errors import BadInput

T = TypeVar("T")
UNKNOWN_WORD = "<unknown>"
_MOST = 3.4e38  # what single precision holds


class UnknownItem(BadInput):
    """An item or word the model never met: names it."""


def cut(items: Sequence[T], length: int) -> Iterator[Sequence[T]]:
    """Pieces of at most `length` items, none of them lost."""
    for start in range(0, len(items), length):
        yield items[start : start + length]


class AnswerKind(StrEnum):
    """What a question is answered by, and so what its scores [b, q, c] are scores of."""

    CLASSES = "classes"  # one of a fixed set, the same for every stream
    CANDIDATES = "candidates"  # one of the stream's own candidates
    CLICK = "click"  # yes or no: a single logit


@dataclass(frozen=True, kw_only=True)
class IdCodec:
    """Streams of item numbers, asked by query numbers: the synthetic task."""

    segment_len: int
    num_items: int
    num_queries: int
    num_answers: int
    kind: Literal["ids"] = "ids"

    # a segment ends after N items
    segment_per_write = False
    answer_kind = AnswerKind.CLASSES

    def encode_item(self, raw: Any) -> list[int]:
        """One item's number, checked."""
        return [_in_range(raw, self.num_items, "item")]

    def encode_question(self, raw: Any) -> list[int]:
        """One query's number, checked."""
        return [_in_range(raw, self.num_queries, "query")]

    def decode_answer(self, index: int) -> int:
        """The answer's number."""
        return index


@dataclass(frozen=True, kw_only=True)
class _Words:
    """What codecs of texts share: a vocabulary that questions are written with."""

    segment_len: int
    words: list[str]

    @property
    def num_queries(self) -> int:
        """Words of questions."""
        return len(self.words)

    @cached_property
    def word_index(self) -> dict[str, int]:
        """Number of each word."""
        return {word: i for i, word in enumerate(self.words)}


@dataclass(frozen=True, kw_only=True)
class _OpenWords(_Words):
    """A vocabulary whose first word, `UNKNOWN_WORD`, stands for all that are not in it."""

    def encode_words(self, words: Sequence[str]) -> list[int]:
        """Numbers of words; an unknown one has the number 0."""
        return [self.word_index.get(word, 0) for word in words]

    def encode_question(self, raw: Any) -> list[int]:
        """The words of one question."""
        return self.encode_words(_tokens(raw))


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """A fixed set of answers."""

    answers: list[str]

    @property
    def num_answers(self) -> int:
        """Answer classes."""
        return len(self.answers)

    @cached_property
    def answer_index(self) -> dict[str, int]:
        """Number of each answer."""
        return {answer: i for i, answer in enumerate(self.answers)}

    def decode_answer(self, index: int) -> str:
        """The answer's text."""
        return self.answers[index]


@dataclass(frozen=True, kw_only=True)
class TextCodec(_Answers, _Words):
    """Streams of sentences, asked by sentences, answered by one of the answers seen in training."""

    kind: Literal["text"] = "text"

    # a segment ends with its sentence
    segment_per_write = True
    answer_kind = AnswerKind.CLASSES

    @property
    def num_items(self) -> int:
        """Size of the vocabulary."""
        return len(self.words)

    def encode_words(self, words: Sequence[str]) -> list[int]:
        """Numbers of words; the first unknown one is named."""
        index = self.word_index
        for word in words:
            if word not in index:
                raise UnknownItem(
                    f"The word {word!r} is not among the {len(self.words)} words this model was trained on; "
                    "rephrase without it, or train on text that holds it."
                )
        return [index[word] for word in words]

    def encode_item(self, raw: Any) -> list[int]:
        """The words of one sentence."""
        return self.encode_words(_sentence(raw))

    def encode_question(self, raw: Any) -> list[int]:
        """The words of one question."""
        return self.encode_words(_sentence(raw))


@dataclass(frozen=True, kw_only=True)
class PassageCodec(_OpenWords):
    """Streams of sentences, asked by sentences, answered by one of the candidates that come with a stream.

    Texts of this kind always hold words never met before. A candidate is written as a question is.
    """

    stand_ins: int = 0
    """Numbers that words outside the vocabulary share by their hash; without any they are all the unknown word."""
    kind: Literal["passage"] = "passage"

    segment_per_write = True
    answer_kind = AnswerKind.CANDIDATES

    @property
    def num_items(self) -> int:
        """Size of the vocabulary, with the unknown word and the stand-ins."""
        return len(self.words) + self.stand_ins

    @property
    def num_queries(self) -> int:
        """Questions are written as items are."""
        return self.num_items

    def encode_words(self, words: Sequence[str]) -> list[int]:
        """Numbers of words; one outside the vocabulary has that of its stand-in, the same wherever it occurs."""
        index = self.word_index
        return [index[word] if word in index else self._stand_in(word) for word in words]

    def _stand_in(self, word: str) -> int:
        return len(self.words) + crc32(word.encode()) % self.stand_ins if self.stand_ins else 0

    def encode_item(self, raw: Any) -> list[int]:
        """The words of one sentence."""
        return self.encode_words(_tokens(raw))


@dataclass(frozen=True, kw_only=True)
class FrameCodec(_Answers, _OpenWords):
    """Streams of vectors, such as features of a video's frames, asked by sentences, with fixed answers."""

    width: int
    """Numbers of a vector, whatever made it."""
    kind: Literal["frames"] = "frames"

    segment_per_write = False
    answer_kind = AnswerKind.CLASSES
    # vectors are not numbered
    num_items = None

    def encode_item(self, raw: Any) -> list[Any]:
        """One vector, checked."""
        if not isinstance(raw, Sequence) or len(raw) != self.width or not all(map(_is_number, raw)):
            raise UnknownItem(f"{_shown(raw)} is no item of this model; expected {self.width} finite numbers.")
        return [tuple(map(float, raw))]


@dataclass(frozen=True, kw_only=True)
class ClickCodec:
    """Streams of item numbers, asked by an item's number: will it be the next to be clicked?"""

    segment_len: int
    num_items: int
    kind: Literal["clicks"] = "clicks"
    item_names: str | None = None
    """A digest of the items' names, which tells the numbers of one log from those of another; none where the items were
    published as numbers."""

    segment_per_write = False
    answer_kind = AnswerKind.CLICK

    @property
    def num_queries(self) -> int:
        """A question is one of the items."""
        return self.num_items

    def encode_item(self, raw: Any) -> list[int]:
        """One item's number, checked."""
        return [_in_range(raw, self.num_items, "item")]

    def encode_question(self, raw: Any) -> list[int]:
        """The target item's number, checked."""
        return [_in_range(raw, self.num_items, "item")]


Codec = IdCodec | TextCodec | PassageCodec | FrameCodec | ClickCodec
KINDS: dict[str, type[Codec]] = {
    "ids": IdCodec,
    "text": TextCodec,
    "passage": PassageCodec,
    "frames": FrameCodec,
    "clicks": ClickCodec,
}


def codec_from_json(value: dict[str, Any]) -> Codec:
    """The codec that `dataclasses.asdict` wrote."""
    if value.get("kind") not in list(KINDS):
        raise BadInput(f"The codec has the unknown kind {value.get('kind')!r}; expected one of {sorted(KINDS)}.")
    try:
        return KINDS[value["kind"]](**value)
    except TypeError as error:
        raise BadInput(f"The codec has wrong fields ({error}).") from None


def _in_range(raw: Any, limit: int, what: str) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < limit:
        raise UnknownItem(f"{_shown(raw)} is no {what} of this model; expected an integer from 0 to {limit - 1}.")
    return raw


def _is_number(raw: Any) -> bool:
    return isinstance(raw, int | float) and not isinstance(raw, bool) and abs(raw) <= _MOST


def _shown(raw: Any) -> str:
    try:
        text = repr(raw)
    except ValueError:  # Python does not print a number of thousands of digits
        return "Something with a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _tokens(raw: Any) -> list[str]:
    if not isinstance(raw, str):
        raise UnknownItem(f"{_shown(raw)} is not a sentence; expected text.")
    words = tokenize(raw)
    if not words:
        raise UnknownItem(f"{_shown(raw)} holds no word; expected a sentence.")
    return words


def _sentence(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, str):
        raise UnknownItem(f"{_shown(raw)} is not a sentence; expected text.")
    words = words_of(raw)
    if not words:
        raise UnknownItem(f"{_shown(raw)} holds no word; expected a sentence.")
    return words
