"""Which number the next events of a stream have, also after a call of which nobody knows whether it was stored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from remem.service.errors import ServiceError

# refused for what it was: nothing of it was stored
_REFUSED = (400, 409, 413, 422)


class Numbered:
    """A stream whose events are numbered here."""

    next_seq: int | None = None
    """The number of the next event; None until the server was asked."""
    _in_doubt: tuple[Any, ...] = ()
    """What was sent last, if no reply came."""

    def _seq_of(self, events: Any) -> int | None:
        """The number of these events; None if the server has to be asked first.

        Under the numbers of a call in doubt the server may have its events, and take others for a repetition of them.
        """
        doubt = self._in_doubt
        repeated = isinstance(events, Sequence) and tuple(islice(events, len(doubt))) == doubt
        return self.next_seq if repeated else None

    @contextlib.contextmanager
    def _storing(self, events: Sequence[Any], seq: int) -> Iterator[None]:
        """Around the call that does it."""
        before, self._in_doubt = self._in_doubt, tuple(events) if isinstance(events, Sequence) else ()
        try:
            yield
        except ServiceError as error:
            if error.status in _REFUSED:
                self._in_doubt = before
            raise
        self._go_on_from(seq + len(events))

    def _go_on_from(self, seq: int) -> int:
        self.next_seq, self._in_doubt = seq, ()
        return seq
