"""For those who look after a store without any of its models: inspect, list, delete, export and verify need none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from remem.service.errors import InvalidValue
from remem.service.network import Ask, Fold


class NoModel:
    """Refuses whatever a memory would have to be read or written for."""

    fingerprint, numerics, segment_events = "", "", 1

    def initial_memory(self) -> bytes:
        """No stream is ever made from it."""
        return b""

    def self_test(self) -> None:
        """Nothing is computed."""

    def describe(self, memory: bytes) -> dict[str, Any]:
        """Nothing is known of a memory."""
        return {}

    def checked_item(self, item: Any) -> NoReturn:
        """No item is known."""
        self._refuse()

    def checked_question(self, question: Any) -> NoReturn:
        """No question is known."""
        self._refuse()

    def ask_many(self, asks: Sequence[Ask]) -> NoReturn:
        """No answer is known."""
        self._refuse()

    def fold(self, memory: bytes, segments: Sequence[Sequence[bytes]]) -> NoReturn:
        """No memory is written."""
        self._refuse()

    def fold_many(self, folds: Sequence[Fold]) -> NoReturn:
        """No memory is written."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidValue("The store was opened without a model; give one to append, ask or rebuild.", path="model")
