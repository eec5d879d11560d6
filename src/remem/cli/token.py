"""`remem token add|list|remove FILE`: who may use a server, as which tenant, for what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from remem.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Options:
    """Make, list and take back tokens; a running server notices within a second."""

    action: tyro.conf.Positional[Literal["add", "list", "remove"]]
    """What to do."""
    tokens: tyro.conf.Positional[Path]
    """The server's file of tokens: the store's name followed by .tokens.json, unless it was told otherwise."""
    tenant: str = "default"
    """Whose streams a new token opens."""
    scopes: tuple[str, ...] = ("append", "query", "inspect", "delete")
    """What a new token allows: append, query, inspect, delete, export, metrics, admin."""
    id: str = ""
    """The token to take back, as `list` names it."""


def main(argv: list[str]) -> None:
    """Change the file, print."""
    options = tyro.cli(Options, args=argv, prog="remem token")
    from remem.server.tokens import TokenFile

    if options.action != "add" and not options.tokens.is_file():
        raise BadInput(f"{options.tokens} does not exist; a server makes it at its first start.")
    tokens = TokenFile(options.tokens)
    if options.action == "add":
        print(tokens.add(options.tenant, options.scopes))
    elif options.action == "list":
        for caller in tokens.callers:
            print(f"{caller.id}  {caller.tenant}  {','.join(caller.scopes)}")
    elif not tokens.remove(options.id):
        raise BadInput(f"There is no token {options.id!r}; `remem token list {options.tokens}` names them.")
