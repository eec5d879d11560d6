"""A server in place of a store: commands take its address where they take a store, or as `--url`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remem.errors import BadInput

if TYPE_CHECKING:
    from remem.client.sync import Client


def with_url(argv: list[str]) -> list[str]:
    """Arguments in which `--url ADDRESS` has become the store."""
    for place, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if argument == "--":
            break
        if name != "--url":
            continue
        rest = argv[:place] + argv[place + (1 if equals else 2) :]
        if not equals:
            if place + 1 == len(argv):
                raise BadInput("--url needs the address of a server, such as http://127.0.0.1:8080.")
            value = argv[place + 1]
        if not is_url(value):
            raise BadInput(f"{value!r} is no address of a server; expected http://HOST:PORT or https://HOST:PORT.")
        return [value, *rest]
    return argv


def is_url(store: str) -> bool:
    """Whether a store is a server's."""
    return store.startswith(("http://", "https://"))


def open_client(url: str, *, tenant: str = "default", model: Path | None = None) -> Client:
    """A client with the token of the environment; what the server decides can't be chosen here."""
    if tenant != "default":
        raise BadInput("At a server the token decides whose streams they are; leave --tenant out.")
    if model is not None:
        raise BadInput("At a server the model is the one it was started with; leave --model out.")
    try:
        from remem.client.sync import Client
    except ImportError as error:
        raise BadInput(
            f"{error.name} is not installed; install the client with: pip install 'remem[service]'."
        ) from None
    return Client(url)


def require_model(model: Path | None) -> Path:
    """The model that a local store needs."""
    if model is None:
        raise BadInput("There is no model; give its folder with --model, or the address of a server with --url.")
    return model
