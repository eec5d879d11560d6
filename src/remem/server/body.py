"""Bodies: bounded while they are read, strict JSON, then the form that a route expects."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from remem.service.errors import Deadline, InvalidJson, InvalidSchema, TooLarge
from remem.service.limits import shown

Form = TypeVar("Form", bound=BaseModel)
_KINDS = {
    "model_type": "an object",
    "list_type": "a list",
    "string_type": "text",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
}
"""What is said of a value that is of another kind altogether."""


async def read_body(request: Request, limit: int, deadline: float) -> bytes:
    """The whole body; given up as soon as it is too long or too slow."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise InvalidJson("The connection ended before the body did.")
                size += len(part := message.get("body", b""))
                if size > limit:
                    raise TooLarge(f"The body is longer than {limit} bytes.", limit="body_bytes", most=limit)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Deadline("The body did not arrive in time.") from None


def parse_json(data: bytes, depth: int) -> Any:
    """JSON as RFC 8259 has it: UTF-8, no NaN, no number beyond floats, no name twice, no nesting past `depth`."""
    try:
        text = data.decode()
        value = _DECODER.decode(text)
    except UnicodeDecodeError:
        raise InvalidJson("The body is not UTF-8.") from None
    except RecursionError:
        raise InvalidJson(f"The body is nested deeper than {depth}.") from None
    except ValueError as error:
        reason = f"{error.msg} at {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidJson(f"The body is not JSON: {reason}.") from None
    if _deeper(value, depth):
        raise InvalidJson(f"The body is nested deeper than {depth}.")
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidJson("The body holds half of a surrogate pair, which is no character.") from None
    return value


def as_form(form: type[Form], value: Any) -> Form:
    """The body as the route expects it; the refusal names the place, and quotes nothing long."""
    try:
        return form.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
    places = [_place_in(value, each["loc"], each["type"]) for each in errors]
    # what may have several forms was checked against each: the one it nearly has tells most
    near = max(range(len(errors)), key=lambda i: (len(places[i]), errors[i]["type"] not in _KINDS))
    first, path = errors[near], place_of(places[near])
    kinds = [_KINDS.get(each["type"]) for each, place in zip(errors, places, strict=True) if place == places[near]]
    wanted = " or ".join(dict.fromkeys(filter(None, kinds)))
    what = f"expected {wanted}" if first["type"] in _KINDS else first["msg"]
    given = "" if isinstance(first["input"], dict | list) else f"; given was {shown(first['input'])}"
    raise InvalidSchema(f"{path or 'The body'}: {what}{given}.", path=path)


def _place_in(value: Any, location: tuple[int | str, ...], kind: str) -> tuple[int | str, ...]:
    """Where in a body that is. Between the parts of a place stand the names of forms tried there, which it lacks."""
    place = []
    for part in location:
        is_missing = kind == "missing" and isinstance(value, dict) and part == location[-1]
        if is_missing or (part in value if isinstance(value, dict) else isinstance(value, list) and part != str(part)):
            place.append(part)
            value = None if is_missing else value[part]
    return tuple(place)


def place_of(location: tuple[int | str, ...]) -> str:
    """A place in a body, such as `events[3].item`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refused, parse_float=_finite, object_pairs_hook=_once)


def _deeper(value: Any, depth: int) -> bool:
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(depth):
        inside = (inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer))
        level = [inner for inner in inside if isinstance(inner, list | dict)]
        if not level:
            return False
    return bool(level)
