"""A memory that is taken out and in again, on every store; and archives that nobody's export would have written."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from service_parts import SEED, HashChain, Place, assert_refused, folded

from remem.model.encoder import GRUEncoder
from remem.model.machine import MemoryMachine
from remem.model.writer import SlotWriter
from remem.service import FLUSH, Limits, MemoryEngine
from remem.service.archive import split_tensors
from remem.service.errors import IncompatibleFormat, InvalidValue, ModelMismatch
from remem.service.vector_network import VectorNetwork

EVENTS: list[object] = ["a", "b", 3, "d", FLUSH, "e"]


def exported(retention: str = "tail", **options: Any) -> bytes:
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        engine.create("source", retention=retention, **options)  # type: ignore[arg-type]
        engine.append("source", EVENTS, seq=0)
        engine.settle()
        return engine.export("source")


def forged(change: Callable[[dict[str, Any]], object], archive: bytes | None = None) -> bytes:
    """An archive with other counters or events, and a checksum that fits them."""
    header, tensors = split_tensors(archive or exported())
    metadata = header.pop("__metadata__")
    about = json.loads(metadata.pop("remem-stream"))
    about.pop("check")
    change(about)
    memory = joined(header | ({"__metadata__": metadata} if metadata else {}), tensors)
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    digest.update(memory)
    about["check"] = digest.hexdigest()
    return joined({**header, "__metadata__": metadata | {"remem-stream": json.dumps(about)}}, tensors)


def joined(header: dict[str, Any], tensors: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + tensors


@pytest.mark.parametrize("retention", ["tail", "all"])
def test_an_imported_stream_goes_on_as_the_exported_one(place: Place, retention: str) -> None:
    archive = exported(retention, ttl=1000)
    with MemoryEngine.open(place.open(), HashChain()) as engine:
        done = engine.import_archive("copy", archive, tenant="other")
        assert (done.accepted, done.next_seq, done.consolidated_seq, done.memory_version) == (0, 6, 5, 2)
        about = engine.inspect("copy", tenant="other")
        assert (about.retention, about.ttl, about.generation) == (retention, 1000, 0)
        assert engine.query("copy", "?", tenant="other").answer == folded(EVENTS)
        assert engine.append("copy", EVENTS[2:], seq=2, tenant="other").duplicates == 4
        assert_refused("sequence_conflict", lambda: engine.append("copy", ["x"], seq=3, tenant="other"))
        engine.append("copy", ["f", "g"], seq=6, tenant="other")
        assert engine.settle()
        assert engine.query("copy", "?", tenant="other").answer == folded([*EVENTS, "f", "g"])
        assert engine.verify().clean
        assert engine.verify().refolded == (retention == "all")
    with MemoryEngine.open(place.open(), HashChain()) as again:
        assert again.query("copy", "?", tenant="other").answer == folded([*EVENTS, "f", "g"])


def test_a_tail_of_whole_segments_is_consolidated_after_an_import(place: Place) -> None:
    with MemoryEngine.open(":memory:", HashChain(50)) as source:
        source.append("s", list(range(40)), seq=0)
        archive = source.export("s")
    with MemoryEngine.open(place.open(), HashChain(50)) as engine:
        engine.import_archive("s", archive)
        engine.append("s", list(range(40, 55)), seq=40)
        assert engine.settle()
        assert engine.inspect("s").consolidated_seq == 50
        assert engine.query("s", "?").answer == folded(list(range(55)), segment_events=50)


def test_an_import_may_be_repeated_and_replaces_nothing(place: Place) -> None:
    archive = exported()
    with MemoryEngine.open(place.open(), HashChain()) as engine:
        engine.import_archive("s", archive)
        assert engine.import_archive("s", archive).next_seq == 6
        engine.append("s", ["more"], seq=6)
        assert_refused("stream_exists", lambda: engine.import_archive("s", archive))
        assert engine.query("s", "?").answer == folded([*EVENTS, "more"])
        engine.delete("s")
        assert engine.import_archive("s", archive).next_seq == 6


def test_another_model_s_archive_is_refused(place: Place) -> None:
    with MemoryEngine.open(place.open(), HashChain(4)) as engine:
        found = assert_refused("model_mismatch", lambda: engine.import_archive("s", exported()))
        assert (found.details["found"], found.details["expected"]) == ("chain-3", "chain-4")
        assert engine.list().streams == []
    with MemoryEngine.open(":memory:", None) as keeper:
        assert_refused("invalid_value", lambda: keeper.import_archive("s", exported()))
    moved = HashChain()
    moved.numerics = "elsewhere"
    with MemoryEngine.open(":memory:", moved, strict_numerics=True) as strict:
        assert_refused("numerics_mismatch", lambda: strict.import_archive("s", exported()))
    with MemoryEngine.open(":memory:", moved) as engine:
        engine.import_archive("s", exported("all"))
        engine.append("s", ["f", "g"], seq=6)
        engine.settle()
        assert engine.inspect("s").numerics_changes == 1
        again = engine.export("s")  # that its numerics changed goes with it, so that nobody compares bits
        engine.import_archive("t", again)
        assert engine.inspect("t").numerics_changes == 1
        assert engine.verify().clean


def test_an_archive_of_the_first_form_is_still_read() -> None:
    def older(about: dict[str, Any]) -> None:
        del about["ttl"], about["numerics_changes"]

    with MemoryEngine.open(":memory:", HashChain()) as engine:
        assert engine.import_archive("s", forged(older)).next_seq == 6
        assert engine.inspect("s").ttl is None


def payload(data: bytes) -> str:
    return base64.b64encode(data).decode()


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a counter below 0": lambda about: about.update(version=-1),
    "a counter that is text": lambda about: about.update(next_seq="6"),
    "a counter that is a bool": lambda about: about.update(version=True),
    "a counter past the last number": lambda about: about.update(next_seq=2**53, consolidated_seq=2**53 - 1),
    "a tail before the beginning": lambda about: about.update(consolidated_seq=7),
    "an event too few": lambda about: about.update(events=[]),
    "an event too many": lambda about: about["events"].append(about["events"][0]),
    "an event of no kind": lambda about: about.update(events=[payload(b"zzz")]),
    "an event that is empty": lambda about: about.update(events=[""]),
    "an event that is not UTF-8": lambda about: about.update(events=[payload(b"t\\0\xff")]),
    "an event the model refuses": lambda about: about.update(events=[payload(b"t\0")]),
    "an event with a strange mark": lambda about: about.update(events=[payload(b"t\2e")]),
    "an event that is a longer number": lambda about: about.update(events=[payload(b"i\0" + b"\1" * 9)]),
    "an event that is no base64": lambda about: about.update(events=["%"]),
    "events that are no list": lambda about: about.update(events=7),
    "digests of others": lambda about: about.update(digests="00" * 48),
    "digests of too many": lambda about: about.update(digests="00" * 8 + about["digests"]),
    "digests that are no digits": lambda about: about.update(digests="xy"),
    "a retention that is none": lambda about: about.update(retention="days"),
    "a time that is none": lambda about: about.update(ttl=-5),
    "a time that is text": lambda about: about.update(ttl="x"),
    "a fingerprint that is none": lambda about: about.update(fingerprint=["chain-3"]),
    "numerics that are none": lambda about: about.update(numerics=None),
    "numerics that are no text": lambda about: about.update(numerics="\ud800"),
    "numerics without an end": lambda about: about.update(numerics="x" * 100_000),
    "changes below 0": lambda about: about.update(numerics_changes=-1),
    "changes past all numbers": lambda about: about.update(numerics_changes=2**63),
    "no memory yet, but a memory": lambda about: about.update(consolidated_seq=0, next_seq=1, digests="00" * 8),
    "a missing counter": lambda about: about.pop("version"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_archive_is_bad_input_and_leaves_no_trace(what: str) -> None:
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        assert_refused("invalid_value", lambda: engine.import_archive("s", forged(FORGERIES[what])))
        assert list(engine.store.keys()) == []
        assert engine.import_archive("s", forged(lambda about: None)).next_seq == 6  # forging itself works


def test_a_memory_that_its_events_do_not_give_is_refused() -> None:
    kept = exported("all")
    wrong = kept[:-1] + bytes([kept[-1] ^ 1])
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        assert_refused("invalid_value", lambda: engine.import_archive("s", wrong))
        assert_refused("invalid_value", lambda: engine.import_archive("s", forged(lambda about: None, wrong)))
        swapped = forged(lambda about: about["events"].__setitem__(0, payload(b"t\0z")), kept)
        assert_refused("invalid_value", lambda: engine.import_archive("s", swapped))
        assert engine.import_archive("s", kept).next_seq == 6


def test_a_newer_archive_is_refused_as_such() -> None:
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        newer = forged(lambda about: about.update(format_version=99))
        assert_refused("incompatible_format", lambda: engine.import_archive("s", newer))


def test_sizes_are_bounded_before_anything_is_parsed() -> None:
    archive = exported()
    with MemoryEngine.open(":memory:", HashChain(), limits=Limits(archive_bytes=len(archive))) as engine:
        assert engine.import_archive("s", archive).next_seq == 6
        found = assert_refused("too_large", lambda: engine.import_archive("t", archive + b"x"))
        assert found.details["limit"] == "archive_bytes"
    with MemoryEngine.open(":memory:", HashChain(), limits=Limits(tail_events=0)) as engine:
        assert_refused("too_large", lambda: engine.import_archive("s", archive))
    nested = b"[" * 100_000
    lying = [b"", b"x", b"\xff" * 8, struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", len(nested)) + nested]
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        for data in (*lying, b'{"chain": 1}', "text", None, 7):
            assert_refused("invalid_value", lambda data=data: engine.import_archive("s", data))  # type: ignore[misc]


def test_a_damaged_archive_is_refused_or_changes_nothing() -> None:
    archive, chance = exported("all"), random.Random(SEED)
    with MemoryEngine.open(":memory:", HashChain()) as engine:
        engine.import_archive("whole", archive)
        wanted = engine.query("whole", "?").answer
        for turn in range(300):
            place = chance.randrange(len(archive))
            damaged = archive[:place] + bytes([archive[place] ^ (1 << chance.randrange(8))]) + archive[place + 1 :]
            try:
                engine.import_archive(f"s{turn}", damaged)
            except (InvalidValue, IncompatibleFormat, ModelMismatch):
                continue
            assert engine.query(f"s{turn}", "?").answer == wanted, f"seed {SEED}: byte {place} changed it unseen"


def test_a_memory_of_tensors_is_checked_number_by_number() -> None:
    torch.manual_seed(0)
    writer = SlotWriter(item_dim=4, model_dim=4, num_slots=3)
    machine = MemoryMachine(encoder=GRUEncoder(item_dim=4), writer=writer, num_slots=3, item_dim=4)
    network = VectorNetwork(machine, item_dim=4, segment_len=2)
    with MemoryEngine.open(":memory:", network) as engine:
        engine.append("s", [[0.1, 0.2, 0.3, 0.4]] * 5, seq=0)
        engine.settle()
        archive = engine.export("s")
        engine.import_archive("copy", archive)
        assert engine.inspect("copy").memory == engine.inspect("s").memory
        header, tensors = split_tensors(archive)
        about = json.loads(header["__metadata__"]["remem-stream"])
        assert about["consolidated_seq"] == 4
        for bits in (b"\0\0\xc0\x7f", b"\0\0\x80\xff"):  # NaN and minus infinity
            broken = forged(lambda about: None, joined(header, bits + tensors[4:]))
            assert_refused("invalid_value", lambda broken=broken: engine.import_archive("t", broken))
        longer = forged(lambda about: None, joined(header, tensors + bytes(4)))
        assert_refused("invalid_value", lambda: engine.import_archive("t", longer))
        told = {"__metadata__": header["__metadata__"] | {"more": "x"}}
        assert_refused(
            "invalid_value", lambda: engine.import_archive("t", forged(lambda _: None, joined(header | told, tensors)))
        )
        first = next(name for name in header if name != "__metadata__")
        header[first] = header[first] | {"shape": [1, *header[first]["shape"]]}
        other = forged(lambda about: None, joined(header, tensors))
        assert_refused("invalid_value", lambda: engine.import_archive("t", other))
        assert engine.list().streams == ["copy", "s"]
