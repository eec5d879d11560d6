"""A saved model, with any `Memorizer`, behind the engine's interface: streams of sentences, item numbers or vectors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from remem.bundle import Bundle, load_bundle
from remem.data.codec import Codec, FrameCodec, PassageCodec, TextCodec, cut
from remem.errors import BadInput
from remem.model.assembly import MemoryModel
from remem.model.interface import State
from remem.service.events import pack_event, unpack_event
from remem.service.numerics import unpack_state, use_one_thread
from remem.service.records import FORMAT_VERSION
from remem.service.torch_network import TorchNetwork
from remem.settings.codec import to_json
from remem.streaming.steps import Answer, answer_question, write_segments

_TEST_SEGMENTS = 6
MOST_CANDIDATES = 1000


class BundleNetwork(TorchNetwork):
    """A memory model and its codec.

    Events are sentences, each one or more segments, or item numbers or vectors, N a segment. A model that chooses among
    candidates is asked with `{"question": ..., "candidates": [...]}`.
    """

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
        self.model, self.codec = bundle.model.eval(), bundle.codec
        whole = {"weights": bundle.fingerprint, "model": to_json(bundle.run.model), "format": FORMAT_VERSION,
                 "codec": dataclasses.asdict(bundle.codec)}  # fmt: skip
        fingerprint = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]
        super().__init__(self.model.memory_method, fingerprint)

    @classmethod
    def open(cls, model: str | Path | Bundle) -> BundleNetwork:
        """The model saved in a folder, or a bundle."""
        return cls(model if isinstance(model, Bundle) else load_bundle(model))

    @property
    def segment_events(self) -> int:
        """N items, or one sentence."""
        return 1 if self.codec.segment_per_write else self.codec.segment_len

    def checked_item(self, item: Any) -> Any:
        """A sentence, an item number or a vector that the codec knows."""
        (first, *_) = self.codec.encode_item(item) or [None]
        return list(first) if isinstance(first, tuple) else item

    def checked_question(self, question: Any) -> Any:
        """A question in words or numbers that the codec knows, with its candidates where there must be some."""
        text, candidates = _parts(self.codec, question)
        for each in (text, *(candidates or ())):
            self.codec.encode_question(each)
        return question

    def answer(self, memory: bytes, question: Any, top: int) -> Answer:
        """By the model's reasoner and head."""
        use_one_thread()
        with torch.no_grad():
            slots = self._memorizer.memory(unpack_state(memory, self._empty))
        text, candidates = _parts(self.codec, question)
        return answer_question(self.model, self.codec, slots, text, top=top, candidates=candidates)

    def _pieces(self, segment: Sequence[bytes]) -> list[Sequence[Any]]:
        items = [unpack_event(payload).item for payload in segment]
        numbers = [number for item in items if item is not None for number in self.codec.encode_item(item)]
        return list(cut(numbers, self.codec.segment_len))

    def _written(self, state: State, pieces: Sequence[Sequence[Any]]) -> State:
        return write_segments(self.model, self.codec, state, pieces)

    def _test_segments(self) -> list[list[bytes]]:
        """Segments of several lengths, of items spread over the vocabulary, or of vectors."""
        codec = self.codec
        segments = []
        for turn in range(_TEST_SEGMENTS):
            length = 1 + (turn * 7 + codec.segment_len - 1) % codec.segment_len
            if isinstance(codec, FrameCodec):
                rows = ((31 * turn + 17 * place + 7 * torch.arange(codec.width)) % 13 - 6 for place in range(length))
                segments.append([pack_event((row / 6).tolist(), False) for row in rows])
                continue
            numbers = [(31 * turn + 17 * place) % codec.num_items for place in range(length)]
            if isinstance(codec, TextCodec | PassageCodec):
                segments.append([pack_event(" ".join(codec.words[number] for number in numbers), False)])
            else:
                segments.append([pack_event(number, False) for number in numbers])
        return segments


def _parts(codec: Codec, question: Any) -> tuple[Any, list[str] | None]:
    """What is asked, and the candidates, which are part of the question where answers are candidates."""
    if not isinstance(codec, PassageCodec):
        return question, None
    if not isinstance(question, dict) or set(question) != {"question", "candidates"}:
        raise BadInput('This model chooses among candidates; ask with {"question": "...", "candidates": ["...", ...]}.')
    candidates = question["candidates"]
    if not isinstance(candidates, list) or not 1 <= len(candidates) <= MOST_CANDIDATES:
        raise BadInput(f"candidates must be a list of 1 to {MOST_CANDIDATES} answers.")
    return question["question"], candidates
