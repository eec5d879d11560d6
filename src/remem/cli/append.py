"""`remem append STORE STREAM --model MODEL`: add events to a durable stream; returns when they are on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from remem.cli.ask import (
    Story,
    read_lines,
    read_numbers,
    read_passage,
    read_sentences,
    refuse_unknown_items,
    tell_how_it_was_read,
)
from remem.cli.remote import is_url, open_client, require_model, with_url
from remem.errors import BadInput

if TYPE_CHECKING:
    from remem.service.results import Appended


@dataclass(frozen=True, kw_only=True)
class Options:
    """Add the events of a file, of standard input, or of the command line to a stream."""

    store: tyro.conf.Positional[str]
    """A store file, made if it is not there, redis://HOST:PORT/DB, or http://HOST:PORT of a server (also --url)."""
    stream: tyro.conf.Positional[str]
    """The stream's name."""
    events: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="EVENT ...")] = ()
    """Sentences or item numbers; without any they are read from --story."""
    model: Path | None = None
    """Folder of a run or of a saved model; a server has its own."""
    story: Path | None = None
    """Sentences, plain or in bAbI's numbered lines, or item numbers; - or nothing is standard input."""
    seq: int | None = None
    """Number of the first event: with it the same call may be repeated safely. Without it they get the next numbers."""
    tenant: str = "default"
    """Whose stream it is."""
    durability: Literal["fsync", "os"] = "fsync"
    """Whether to survive a power cut, or the end of the process alone."""
    format: Literal["text", "json"] = "text"
    """How to print what was done."""


def main(argv: list[str]) -> None:
    """Read, check all of it, append."""
    options = tyro.cli(Options, args=with_url(argv), prog="remem append")
    if options.events and options.story:
        raise BadInput("Events were given, and --story too; give one of them.")
    source, lines = ("the command line", list(options.events)) if options.events else read_lines(options.story)
    if is_url(options.store):
        story, done = _send(options, source, lines)
    else:
        story, done = _write(options, source, lines)
    tell_how_it_was_read(story, source)
    if options.format == "json":
        print(json.dumps(asdict(done)))
        return
    known = f", {done.duplicates} were there already" if done.duplicates else ""
    print(f"{options.stream}: {done.accepted} events added{known}; the next is number {done.next_seq}.")


def _read(kind: str, source: str, lines: list[str]) -> Story:
    """Events as a model of this kind takes them."""
    if kind in ("frames", "vectors"):
        raise BadInput("The model reads vectors, which a command line can't give; append them from Python.")
    return {"text": read_sentences, "passage": read_passage}.get(kind, read_numbers)(lines, source)


def _send(options: Options, source: str, lines: list[str]) -> tuple[Story, Appended]:
    """To a server; numbered here, so that every batch may be repeated."""
    with open_client(options.store, tenant=options.tenant, model=options.model) as client:
        story = _read(client.models()[0]["items"], source, lines)
        stream, most = client.stream(options.stream), client.limits()["events"]
        stream.next_seq = options.seq
        items = [item for _, item in story.items]
        parts = [stream.append(items[start : start + most]) for start in range(0, len(items), most)]
    return story, replace(parts[-1], accepted=sum(part.accepted for part in parts),
                          duplicates=sum(part.duplicates for part in parts))  # fmt: skip


def _write(options: Options, source: str, lines: list[str]) -> tuple[Story, Appended]:
    """To a store of one's own."""
    from remem.data.codec import cut
    from remem.service.bundle_network import BundleNetwork
    from remem.service.engine import MemoryEngine
    from remem.service.results import Appended

    network = BundleNetwork.open(require_model(options.model))
    story = _read(network.codec.kind, source, lines)
    refuse_unknown_items(story, source, network.codec)
    with MemoryEngine.open(options.store, network, durability=options.durability) as engine:
        seq, accepted, duplicates = options.seq, 0, 0
        for batch in cut([item for _, item in story.items], engine.limits.events):
            done = engine.append(options.stream, batch, seq=seq, tenant=options.tenant, timeout=60.0)
            accepted, duplicates = accepted + done.accepted, duplicates + done.duplicates
            seq = None if seq is None else seq + len(batch)
        engine.settle()
        about = engine.inspect(options.stream, tenant=options.tenant)
    return story, Appended(
        accepted=accepted,
        duplicates=duplicates,
        next_seq=about.next_seq,
        consolidated_seq=about.consolidated_seq,
        memory_version=about.memory_version,
    )
