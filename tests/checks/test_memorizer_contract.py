"""Every memory of ours holds to the contract, and a memory that breaks it is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from remem.build import build_machine, build_memorizer
from remem.checks.memorizer import CHECKS, check_memorizer, check_neighbours
from remem.data.batch import Segment
from remem.data.codec import IdCodec
from remem.experiments.presets import PRESETS
from remem.model.interface import EmbeddedStream, Trace
from remem.model.machine import MemoryMachine, SlotState
from remem.settings.baselines import (
    ClickSettings,
    DirectSettings,
    NativeSTMSettings,
    NativeWordSettings,
    QuestionAnswerSettings,
)
from remem.settings.model import ModelSettings

DIM = 16


# one preset for each memory: presets that differ only in what is rehearsed share theirs
MEMORIES = {
    (run.model.machine, run.model.pre_norm, run.model.embedding): name
    for name, run in PRESETS.items()
    if not isinstance(
        run.model.machine,
        DirectSettings | ClickSettings | NativeWordSettings | NativeSTMSettings | QuestionAnswerSettings,
    )
}.values()


@pytest.mark.parametrize("name", MEMORIES)
def test_the_memory_of_every_preset_holds_to_the_contract(
    name: str, shrink: Callable[[ModelSettings], ModelSettings]
) -> None:
    torch.manual_seed(0)
    codec = IdCodec(segment_len=4, num_items=30, num_queries=5, num_answers=3)
    check_memorizer(build_memorizer(shrink(PRESETS[name].model), codec), DIM)  # type: ignore[arg-type]


def test_the_contract_is_seven_checks_of_different_names() -> None:
    assert len({check.__name__ for check in CHECKS}) == 7


class Broken(MemoryMachine):
    """A memory with one fault, by name."""

    fault = ""

    def write(self, state: SlotState, segment: Segment) -> SlotState:
        if self.fault == "ignores masks":
            segment = segment._replace(mask=torch.ones_like(segment.mask))
        if self.fault == "ignores padded items" and bool(segment.mask.any()):
            segment = segment._replace(mask=torch.ones_like(segment.mask))
        written = super().write(state, segment)
        if self.fault == "writes in place" and state.slots.is_contiguous():
            state.slots.copy_(written.slots)
        return written

    def write_stream(self, state: SlotState, stream: EmbeddedStream) -> Trace:
        trace = super().write_stream(state, stream)
        slots: Any = trace.state.slots  # type: ignore[attr-defined]
        if self.fault == "mixes streams":
            slots = slots + slots.mean(dim=0, keepdim=True)
        if self.fault == "grows":
            slots = torch.cat([slots, slots[:, :1]], dim=1)
        if self.fault == "writes a stream in place" and state.slots.is_contiguous():
            state.slots.copy_(slots)
        if self.fault == "tells late":
            return trace._replace(memories=torch.cat([trace.memories[:, :1], trace.memories[:, :-1]], dim=1))
        if self.fault == "cuts gradients":
            slots = slots.detach() + 0 * stream.items[stream.item_mask].sum()
        return trace._replace(state=SlotState(slots))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("ignores masks", "padding"),
        ("ignores padded items", "padded item changed what `write` makes"),
        ("writes in place", "changed the state"),
        ("writes a stream in place", "`write_stream` changed the state"),
        ("tells late", "memories that `write_stream` tells"),
        ("grows", "grew|match|size"),
        ("cuts gradients", "gradient"),
    ],
)
def test_a_faulty_memory_is_caught(fault: str, said: str, small_rm: ModelSettings) -> None:
    with pytest.raises((AssertionError, RuntimeError), match=f"(?is){said}"):
        check_memorizer(broken(small_rm, fault), DIM)


def test_a_memory_that_mixes_streams_is_caught_by_its_neighbours(small_rm: ModelSettings) -> None:
    """By that check alone: chunks of a mixed stream differ as well, and are looked at before."""
    with pytest.raises(AssertionError, match="Changing one stream changed another's memory"):
        check_neighbours(broken(small_rm, "mixes streams"), DIM)


def broken(settings: ModelSettings, fault: str) -> Broken:
    torch.manual_seed(0)
    whole = build_machine(settings, segment_len=4)
    memory = Broken(encoder=whole.encoder, writer=whole.writer, num_slots=3, item_dim=DIM)
    memory.fault = fault
    return memory
