"""What callers give, checked before anything is stored: every refusal names the value and what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from remem.errors import BadInput
from remem.service.errors import InvalidValue, TooLarge
from remem.service.events import Event, pack_event
from remem.service.limits import LAST_SEQ, Limits, shown
from remem.service.network import Network


def checked_events(network: Network, limits: Limits, events: Sequence[Any]) -> list[bytes]:
    """The payloads of one append."""
    if isinstance(events, str | bytes) or not isinstance(events, Sequence):
        raise _no_list(events)
    if not events:
        raise InvalidValue("There are no events; expected at least one.", path="events")
    if len(events) > limits.events:
        raise TooLarge(f"There are {len(events)} events; at most {limits.events} go into one append.", path="events")
    return checked_replay(network, limits, events)


def checked_replay(network: Network, limits: Limits, events: Iterable[Any]) -> list[bytes]:
    """The payloads of a stream from its first event on, however many."""
    if isinstance(events, str | bytes) or not isinstance(events, Iterable):
        raise _no_list(events)
    return [checked_event(network, limits, event, number) for number, event in enumerate(events)]


def _no_list(events: Any) -> InvalidValue:
    return InvalidValue(f"{shown(events)} is no list of events; give a list even for a single one.", path="events")


def checked_event(network: Network, limits: Limits, event: Any, number: int) -> bytes:
    """The payload of one event."""
    path = f"events[{number}]"
    event = event if isinstance(event, Event) else Event(event)
    if not isinstance(event.ends_segment, bool):
        raise InvalidValue(
            f"Event {number} has {shown(event.ends_segment)} for ends_segment; expected a bool.", path=path
        )
    if event.item is None:
        if not event.ends_segment:
            raise InvalidValue(f"Event {number} holds nothing; expected an item.", path=path)
        return pack_event(None, True)
    item = _checked(network.checked_item, event.item, limits, path)
    if isinstance(item, int) and not 0 <= item <= LAST_SEQ:
        raise InvalidValue(f"Event {number} is {shown(item)}; expected a number from 0 to 2^53 - 1.", path=path)
    if isinstance(item, list) and not all(abs(value) <= limits.vector_abs for value in item):
        raise InvalidValue(
            f"Event {number} holds a number that is not finite, or larger than {limits.vector_abs:g}.", path=path
        )
    return pack_event(item, event.ends_segment)


def checked_question(network: Network, limits: Limits, question: Any) -> Any:
    """A question that the model can be asked."""
    if isinstance(question, dict) and isinstance(candidates := question.get("candidates"), list):
        for number, candidate in enumerate([question.get("question"), *candidates]):
            _checked(lambda given: given, candidate, limits, f"candidates[{number - 1}]" if number else "query")
    return _checked(network.checked_question, question, limits, "query")


def checked_seq(seq: object, what: str, room: int = 0) -> int | None:
    """A sequence number with room for `room` more after it; None stays None."""
    if seq is None:
        return None
    if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq <= LAST_SEQ - room:
        raise InvalidValue(f"{what} is {shown(seq)}; expected an integer from 0 to 2^53 - 1.", path=what)
    return seq


def _checked(check: Any, value: Any, limits: Limits, path: str) -> Any:
    try:
        if isinstance(value, str) and len(value.encode()) > limits.text_bytes:
            raise TooLarge(f"{path} has {len(value.encode())} bytes; at most {limits.text_bytes} are taken.", path=path)
        return check(value)
    except UnicodeEncodeError:
        raise InvalidValue(f"{path} is not valid text.", path=path) from None
    except TooLarge:
        raise
    except BadInput as error:
        raise InvalidValue(f"{path}: {error}", path=path) from None
