"""Words and sentences of ordinary English text, and vocabularies of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

# letters and digits with the marks inside a word ('s, n't and hyphens stay with it); every other mark by itself
_TOKEN = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*|[^\w\s]|_+")
_ENDS = frozenset(".!?")
_CLOSERS = frozenset("\"'”’)]}") | {"''", "-rrb-", "-rsb-"}
# a full stop after these ends no sentence
_TITLES = frozenset(
    ("mr", "mrs", "ms", "dr", "st", "jr", "sr", "prof", "gen", "col", "capt", "lt", "sgt", "rev", "vs", "mt")
)


def tokenize(text: str) -> list[str]:
    """Lower-case words and marks."""
    return _TOKEN.findall(text.lower())


def sentences(words: Sequence[str]) -> list[Sequence[str]]:
    """Runs of words that end with a full stop, a question mark or an exclamation mark, closing marks included."""
    found, first, i = [], 0, 0
    while i < len(words):
        if words[i] in _ENDS and not (words[i] == "." and i > 0 and _abbreviates(words[i - 1])):
            while i + 1 < len(words) and (words[i + 1] in _CLOSERS or words[i + 1] in _ENDS):
                i += 1
            found.append(words[first : i + 1])
            first = i + 1
        i += 1
    if first < len(words):
        found.append(words[first:])
    return found


def _abbreviates(word: str) -> bool:
    return word in _TITLES or (len(word) == 1 and word.isalpha() and word not in ("a", "i"))


def vocabulary(texts: Iterable[Sequence[str]], *, first: str, least: int = 1) -> list[str]:
    """`first`, then all words that occur at least `least` times, the most frequent before the others."""
    counts = Counter(word for words in texts for word in words)
    kept = sorted((word for word, n in counts.items() if n >= least and word != first), key=lambda w: (-counts[w], w))
    return [first, *kept]
