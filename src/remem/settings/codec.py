"""Settings to JSON values and back, so that a run's folder holds the whole resolved configuration."""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from remem.errors import BadInput

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """A settings value as JSON values; a dataclass carries its class name under "type"."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def from_json(cls: type[T], value: Any) -> T:
    """The settings that `to_json` wrote.

    An unknown field is an error that names it. A missing one takes its default: files written before a field existed
    describe a model without it, and defaults are the paper's plain form.
    """
    return typing.cast(T, _read(cls, value, cls.__name__))


def _read(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(typing.get_args(hint), value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise BadInput(f"{where} is {value!r}; expected a list.")
        return tuple(_read(typing.get_args(hint)[0], v, where) for v in value)
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise BadInput(f"{where} is {value!r}; expected one of {', '.join(map(repr, typing.get_args(hint)))}.")
        return value
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(typing.cast(type, hint), value, where)
    if hint is Path:
        if not isinstance(value, str | Path):
            raise BadInput(f"{where} is {value!r}; expected a path.")
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise BadInput(f"{where} is {value!r}; expected a value of type {hint.__name__}.")
    return value


def _read_union(members: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in members:
        return None
    kinds = [m for m in members if m is not type(None)]
    if (
        isinstance(value, dict) and "type" in value
    ):  # without one it is the first kind, as it was before there were others
        kinds = [m for m in kinds if isinstance(m, type) and m.__name__ == value["type"]]
    if not kinds:
        raise BadInput(f"{where} has the unknown type {value.get('type')!r}.")
    return _read(kinds[0], value, where)


def _read_dataclass(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise BadInput(f"{where} is {value!r}; expected the fields of {cls.__name__}.")
    if value.get("type", cls.__name__) != cls.__name__:
        raise BadInput(f"{where} has the type {value['type']!r}; expected {cls.__name__}.")
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls)}
    unknown = set(value) - names - {"type"}
    if unknown:
        raise BadInput(f"{where} has the unknown field {sorted(unknown)[0]!r}; {cls.__name__} has {sorted(names)}.")
    return cls(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in names & set(value)})
