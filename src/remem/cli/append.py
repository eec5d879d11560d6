"""`remem append STORE STREAM --model MODEL`: add events to a durable stream; returns when they are on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from remem.cli.ask import Story, read_lines, read_numbers, read_sentences, refuse_unknown_items, tell_how_it_was_read
from remem.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Options:
    """Add the events of a file, of standard input, or of the command line to a stream."""

    store: tyro.conf.Positional[str]
    """A store file, made if it is not there, or redis://HOST:PORT/DB."""
    stream: tyro.conf.Positional[str]
    """The stream's name."""
    events: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="EVENT ...")] = ()
    """Sentences or item numbers; without any they are read from --story."""
    model: Path
    """Folder of a run or of a saved model."""
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
    options = tyro.cli(Options, args=argv, prog="remem append")
    if options.events and options.story:
        raise BadInput("Events were given, and --story too; give one of them.")
    source, lines = ("the command line", list(options.events)) if options.events else read_lines(options.story)
    from remem.data.codec import cut
    from remem.service.bundle_network import BundleNetwork
    from remem.service.engine import MemoryEngine

    network = BundleNetwork.open(options.model)
    story: Story = read_sentences(lines, source) if network.codec.kind == "text" else read_numbers(lines, source)
    refuse_unknown_items(story, source, network.codec)
    with MemoryEngine.open(options.store, network, durability=options.durability) as engine:
        seq, accepted, duplicates = options.seq, 0, 0
        for batch in cut([item for _, item in story.items], engine.limits.events):
            done = engine.append(options.stream, batch, seq=seq, tenant=options.tenant, timeout=60.0)
            accepted, duplicates = accepted + done.accepted, duplicates + done.duplicates
            seq = None if seq is None else seq + len(batch)
        engine.settle()
        about = engine.inspect(options.stream, tenant=options.tenant)
    tell_how_it_was_read(story, source)
    if options.format == "json":
        shown = {"accepted": accepted, "duplicates": duplicates, "next_seq": about.next_seq}
        print(json.dumps({**shown, "consolidated_seq": about.consolidated_seq, "memory_version": about.memory_version}))
        return
    known = f", {duplicates} were there already" if duplicates else ""
    print(f"{options.stream}: {accepted} events added{known}; the next is number {about.next_seq}.")
