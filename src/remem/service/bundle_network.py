"""A saved model, with any `Memorizer`, behind the engine's interface: streams of sentences or of item numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from remem.bundle import Bundle, load_bundle
from remem.data.codec import cut
from remem.errors import BadInput
from remem.model.assembly import MemoryModel
from remem.model.interface import State, detach_state
from remem.service.events import pack_event, unpack_event
from remem.service.network import NotFinite
from remem.service.numerics import is_finite, numerics_id, pack_state, require_same_bits, unpack_state, use_one_thread
from remem.service.records import FORMAT_VERSION
from remem.settings.codec import to_json
from remem.streaming.steps import Answer, answer_question, write_segment

_TEST_SEGMENTS = 6


class BundleNetwork:
    """A memory model and its codec. Events are sentences, each one or more segments, or item numbers, N a segment."""

    def __init__(self, bundle: Bundle) -> None:
        if not isinstance(bundle.model, MemoryModel):
            raise BadInput(
                f"The model is {bundle.run.method}, which reads the whole stream again for every question and keeps no "
                "memory; open one of a memory-based method."
            )
        if any(parameter.is_inference() for parameter in bundle.model.parameters()):
            raise BadInput(
                "The model was built in torch.inference_mode(), which changes its last bits; load it outside."
            )
        use_one_thread()
        self.model, self.codec = bundle.model.eval(), bundle.codec
        with torch.no_grad():
            self._empty = detach_state(self.model.initial_state(1))
        whole = {"weights": bundle.fingerprint, "model": to_json(bundle.run.model), "format": FORMAT_VERSION,
                 "codec": dataclasses.asdict(bundle.codec)}  # fmt: skip
        self.fingerprint = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]

    @classmethod
    def open(cls, model: str | Path | Bundle) -> BundleNetwork:
        """The model saved in a folder, or a bundle."""
        return cls(model if isinstance(model, Bundle) else load_bundle(model))

    @cached_property
    def numerics(self) -> str:
        """Libraries, processor, and the bits of a fixed stream."""
        return numerics_id(self.fold(self.initial_memory(), self._test_segments()))

    @property
    def segment_events(self) -> int:
        """N items, or one sentence."""
        return 1 if self.codec.segment_per_write else self.codec.segment_len

    def checked_item(self, item: Any) -> Any:
        """A sentence or an item number that the codec knows."""
        self.codec.encode_item(item)
        return item

    def checked_question(self, question: Any) -> Any:
        """A question in words or numbers that the codec knows."""
        self.codec.encode_question(question)
        return question

    def initial_memory(self) -> bytes:
        """The learned first memory."""
        return pack_state(self._empty)

    def fold(self, memory: bytes, segments: Sequence[Sequence[bytes]]) -> bytes:
        """One segment after the other, alone in its batch, on one thread."""
        use_one_thread()
        state = self._state(memory)
        for segment in segments:
            items = [unpack_event(payload).item for payload in segment]
            numbers = [number for item in items if item is not None for number in self.codec.encode_item(item)]
            for piece in cut(numbers, self.codec.segment_len):
                state = write_segment(self.model, self.codec, state, piece)
        if not is_finite(state):
            raise NotFinite("The memory came out with NaN or infinity in it.")
        return pack_state(state)

    def answer(self, memory: bytes, question: Any, top: int) -> Answer:
        """By the model's reasoner and head."""
        use_one_thread()
        with torch.no_grad():
            slots = self.model.memory_method.memory(self._state(memory))
        return answer_question(self.model, self.codec, slots, question, top=top)

    def describe(self, memory: bytes) -> dict[str, Any]:
        """Sizes, and the norm of each slot."""
        with torch.no_grad():
            slots = self.model.memory_method.memory(self._state(memory))[0]
        norms = [round(float(norm), 4) for norm in slots.norm(dim=-1)]
        return {"slots": slots.shape[0], "dim": slots.shape[1], "slot_norms": norms}

    def self_test(self) -> None:
        """A fixed stream in several ways."""
        require_same_bits(self.fold, self.initial_memory(), self._test_segments())

    def _state(self, memory: bytes) -> State:
        return unpack_state(memory, self._empty)

    def _test_segments(self) -> list[list[bytes]]:
        """Segments of every length up to N, of items spread over the vocabulary."""
        codec = self.codec
        segments = []
        for turn in range(_TEST_SEGMENTS):
            length = 1 + (turn * 7 + codec.segment_len - 1) % codec.segment_len
            numbers = [(31 * turn + 17 * place) % codec.num_items for place in range(length)]
            if codec.kind == "text":
                segments.append([pack_event(" ".join(codec.words[number] for number in numbers), False)])
            else:
                segments.append([pack_event(number, False) for number in numbers])
        return segments
