"""Every memory of ours holds to the contract, and a memory that breaks it is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from remem.build import build_machine
from remem.checks.memorizer import CHECKS, check_memorizer
from remem.data.batch import Segment
from remem.experiments.presets import PRESETS
from remem.model.interface import EmbeddedStream, Trace
from remem.model.machine import MemoryMachine, SlotState
from remem.settings.model import ModelSettings

DIM = 16


def shrink(model: ModelSettings) -> ModelSettings:
    machine = replace(model.machine, num_slots=3, encoder_layers=1)
    return replace(model, item_dim=DIM, model_dim=DIM, machine=machine)


@pytest.mark.parametrize("name", PRESETS)
def test_the_memory_of_every_preset_holds_to_the_contract(name: str) -> None:
    torch.manual_seed(0)
    check_memorizer(build_machine(shrink(PRESETS[name].model), segment_len=4), DIM)
    assert len(CHECKS) == 6


class Broken(MemoryMachine):
    """A memory with one fault, by name."""

    fault = ""

    def write(self, state: SlotState, segment: Segment) -> SlotState:
        if self.fault == "ignores masks":
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
        if self.fault == "cuts gradients":
            slots = slots.detach() + 0 * stream.items.sum()
        return trace._replace(state=SlotState(slots))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("ignores masks", "padding"),
        ("writes in place", "changed the state"),
        ("mixes streams", "memory"),
        ("grows", "grew|match|size"),
        ("cuts gradients", "gradient"),
    ],
)
def test_a_faulty_memory_is_caught(fault: str, said: str, small_rm: ModelSettings) -> None:
    torch.manual_seed(0)
    whole = build_machine(small_rm, segment_len=4)
    broken = Broken(encoder=whole.encoder, writer=whole.writer, num_slots=3, item_dim=DIM)
    broken.fault = fault
    with pytest.raises((AssertionError, RuntimeError), match=f"(?is){said}"):
        check_memorizer(broken, DIM)
