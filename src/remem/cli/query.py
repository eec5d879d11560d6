"""`remem query STORE STREAM QUESTION... --model MODEL`: ask a stream's memory, also while it is written to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from remem.cli.ask import answer_as_text, as_number, question_for
from remem.cli.remote import is_url, open_client, require_model, with_url
from remem.errors import BadInput

if TYPE_CHECKING:
    from remem.service.results import Answered


@dataclass(frozen=True, kw_only=True)
class Options:
    """Answer questions from a stream's memory alone; changes nothing."""

    store: tyro.conf.Positional[str]
    """A store file, redis://HOST:PORT/DB, or http://HOST:PORT of a server (also --url)."""
    stream: tyro.conf.Positional[str]
    """The stream's name."""
    questions: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="QUESTION ...")]
    """Such as "Where is Mary?"; for a model over item numbers, a query's number."""
    model: Path | None = None
    """Folder of the model that the stream was written with; a server has its own."""
    top: int = 5
    """How many of the likeliest answers to print."""
    min_seq: int | None = None
    """Wait until all events below this number are taken into account."""
    tenant: str = "default"
    """Whose stream it is."""
    format: Literal["text", "json"] = "text"
    """How to print the answers."""


def main(argv: list[str]) -> None:
    """Ask, print."""
    options = tyro.cli(Options, args=with_url(argv), prog="remem query")
    if not options.questions:
        raise BadInput("There is no question; give at least one after the stream, such as 'Where is Mary?'.")
    answers = _sent(options) if is_url(options.store) else _asked(options)
    if options.format == "text":
        said = zip(options.questions, answers, strict=True)
        print("\n\n".join(answer_as_text(question, answered.answer) for question, answered in said))
        return
    shown = [
        {
            "question": question,
            "answer": answered.answer.answer,
            "top": answered.answer.top,
            "as_of_seq": answered.as_of_seq,
            "memory_version": answered.memory_version,
            "model": answered.model,
            "stale": answered.stale,
        }
        for question, answered in zip(options.questions, answers, strict=True)
    ]
    print(json.dumps({"stream": options.stream, "questions": shown}, indent=1))


def _sent(options: Options) -> list[Answered]:
    """By a server."""
    with open_client(options.store, tenant=options.tenant, model=options.model) as client:
        kind = client.models()[0]["items"]
        _require_askable(kind)
        return [
            client.query(
                options.stream,
                question if kind == "text" else as_number(question.strip()),
                top=options.top,
                min_seq=options.min_seq,
            )
            for question in options.questions
        ]


def _asked(options: Options) -> list[Answered]:
    """By a store of one's own."""
    from remem.service.bundle_network import BundleNetwork
    from remem.service.engine import MemoryEngine

    network = BundleNetwork.open(require_model(options.model))
    _require_askable(network.codec.kind)
    questions = [question_for(question, network.codec) for question in options.questions]
    with MemoryEngine.open(options.store, network, read_only=True) as engine:
        return [
            engine.query(options.stream, question, top=options.top, min_seq=options.min_seq, tenant=options.tenant)
            for question in questions
        ]


def _require_askable(kind: str) -> None:
    """Refuse a model that is asked with more than a question."""
    if kind == "passage":
        raise BadInput("The model chooses among candidates, which a command line can't give; ask it from Python.")
