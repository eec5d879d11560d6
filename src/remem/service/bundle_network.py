"""A saved model, with any `Memorizer`, behind the engine's interface: streams of sentences, item numbers or vectors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from remem.bundle import Bundle, load_bundle
from remem.data.codec import Codec, FrameCodec, PassageCodec, TextCodec, cut
from remem.errors import BadInput
from remem.model.assembly import MemoryModel
from remem.model.interface import State, detach_state
from remem.service.events import pack_event, unpack_event
from remem.service.network import Ask
from remem.service.records import FORMAT_VERSION
from remem.service.torch_network import TorchNetwork
from remem.service.traced import Step, traced
from remem.settings.codec import to_json
from remem.streaming.steps import Answer, Asked, answer_questions, padded_segments

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

    def _pieces(self, segment: Sequence[bytes]) -> list[Sequence[Any]]:
        items = [unpack_event(payload).item for payload in segment]
        numbers = [number for item in items if item is not None for number in self.codec.encode_item(item)]
        return list(cut(numbers, self.codec.segment_len))

    def _written(self, state: State, pieces: Sequence[Sequence[Any]]) -> State:
        return type(self._empty)(*self._write(*padded_segments(self.codec, pieces), *state))

    def _answers(self, slots: Sequence[Float[Tensor, "1 k d"]], asks: Sequence[Ask]) -> list[Answer]:
        """Questions of one length together, those with candidates one by one."""
        parts = [_parts(self.codec, ask.question) for ask in asks]
        asked = [Asked(text, ask.top, candidates) for (text, candidates), ask in zip(parts, asks, strict=True)]
        groups: dict[object, list[int]] = defaultdict(list)
        for place, each in enumerate(asked):
            groups[place if each.candidates else (len(self.codec.encode_question(each.question)),)].append(place)
        answers: dict[int, Answer] = {}
        for group in groups.values():
            answer: Callable[..., tuple[Tensor, ...]] = (
                self.model.answer if asked[group[0]].candidates else self._answer
            )
            together = torch.cat([slots[place] for place in group])
            found = answer_questions(answer, self.codec, together, [asked[place] for place in group])
            answers.update(zip(group, found, strict=True))
        return [answers[place] for place in range(len(asks))]

    @cached_property
    def _write(self) -> Step:
        """The model's `write`, of tensors alone."""

        def write(items: Tensor, mask: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            return tuple(detach_state(self.model.write(type(self._empty)(*state), items, mask)))

        pieces = [piece for segment in self._test_segments() for piece in self._pieces(segment)]
        examples = []
        for rows in (2, 3, 1, 16):
            state = (part.expand(rows, *part.shape[1:]).contiguous() for part in self._empty)
            segments = [pieces[row % len(pieces)] for row in range(rows)]
            examples.append((*padded_segments(self.codec, segments), *state))
        return traced(self.model, write, examples)

    @cached_property
    def _answer(self) -> Step:
        """The model's `answer`, of tensors alone."""

        def answer(slots: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.model.answer(slots, tokens, mask))

        memory = self._memorizer.memory(self._empty).detach()
        examples = []
        for rows, words in ((2, 3), (3, 1), (1, 7), (16, 4)):
            tokens = torch.arange(rows * words).view(rows, words) % 2
            slots = memory.expand(rows, *memory.shape[1:]).contiguous()
            examples.append((slots, tokens, torch.ones_like(tokens, dtype=torch.bool)))
        return traced(self.model, answer, examples)

    def self_test(self) -> None:
        """Also records the answer, so that nobody who asks has to wait for it."""
        super().self_test()
        if not isinstance(self.codec, PassageCodec):
            _ = self._answer

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
            numbers = [31 * turn + 17 * place for place in range(length)]
            if isinstance(codec, TextCodec | PassageCodec):
                words = (codec.words[number % len(codec.words)] for number in numbers)
                segments.append([pack_event(" ".join(words), False)])
            else:
                segments.append([pack_event(number % codec.num_items, False) for number in numbers])
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
