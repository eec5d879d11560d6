"""The methods the paper compares with as rows of a task's table, with the embedding, reasoner and schedule of `rm`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from remem.settings.baselines import (
    ASReaderSettings,
    BaselineSettings,
    BlindSettings,
    CaserSettings,
    CompressiveTransformerSettings,
    DIENSettings,
    DirectSettings,
    DMSDNCSettings,
    DNCSettings,
    E2EMNSettings,
    EMNSettings,
    ESASettings,
    EVQASettings,
    GRU4RecSettings,
    HCRNSettings,
    HPMNSettings,
    MIMNSettings,
    NativeSTMSettings,
    NativeWordSettings,
    NUTMSettings,
    RUMSettings,
    STMSettings,
)
from remem.settings.model import ModelSettings, without_rehearsal
from remem.settings.run import Run, TrainSettings

TEXT_READERS: dict[str, BaselineSettings] = {"as-reader": ASReaderSettings(), "e2e-mn": E2EMNSettings()}
VIDEO_READERS: dict[str, BaselineSettings] = {
    "e-vqa": EVQASettings(), "e-mn": EMNSettings(), "e-sa": ESASettings(), "hcrn": HCRNSettings(),
}  # fmt: skip
CLICK_READERS: dict[str, BaselineSettings] = {
    "gru4rec": GRU4RecSettings(), "caser": CaserSettings(), "rum": RUMSettings(), "dien": DIENSettings(),
    "rum-queue": RUMSettings(memory_items=20),  # as published: the last few items alone
}  # fmt: skip


def rivals(
    paper: Run, model: ModelSettings, sized: Callable[[BaselineSettings], BaselineSettings] = lambda machine: machine
) -> list[Run]:
    """What every task's `rm` is compared with, nothing rehearsed; then the memories among them, trained to rehearse."""

    def row(method: str, machine: BaselineSettings, shared: ModelSettings) -> Run:
        return replace(paper, method=method, model=replace(shared, machine=sized(machine)))

    plain = without_rehearsal(model)
    return [
        row("directly-reason", DirectSettings(), plain),
        row("multi-hop-reason", DirectSettings(attention=True), plain),
        row("blind", BlindSettings(), plain),
        row("dnc", DNCSettings(), plain),
        row("dnc-msd", DNCSettings(masked=True, deallocate=True, sharpen=True), plain),
        row("nutm", NUTMSettings(), plain),
        row("dmsdnc", DMSDNCSettings(), plain),
        row("stm", STMSettings(), plain),
        row("stm-matched", STMSettings(width=None), plain),
        row("ct", CompressiveTransformerSettings(), plain),
        row("hpmn", HPMNSettings(), plain),
        row("mimn", MIMNSettings(), plain),
        # what the paper does not try: the others' memories, trained to rehearse
        row("dnc-rehearsal", DNCSettings(), model),
        row("nutm-rehearsal", NUTMSettings(), model),
        row("dmsdnc-rehearsal", DMSDNCSettings(), model),
        row("stm-rehearsal", STMSettings(), model),
        row("ct-rehearsal", CompressiveTransformerSettings(), model),
        row("hpmn-rehearsal", HPMNSettings(), model),
        row("mimn-rehearsal", MIMNSettings(), model),
    ]


def readers(paper: Run, model: ModelSettings, methods: dict[str, BaselineSettings]) -> list[Run]:
    """The directly reasoning methods of a task's own table, which read the whole stream for every question."""
    plain = without_rehearsal(model)
    return [replace(paper, method=name, model=replace(plain, machine=machine)) for name, machine in methods.items()]


def reduced(slots: int, width: int) -> Callable[[BaselineSettings], BaselineSettings]:
    """Rivals at sizes as reduced as those of `models.small`: as many slots, as few layers, and its width."""

    def sized(machine: BaselineSettings) -> BaselineSettings:
        match machine:
            case STMSettings(width=int()):
                return replace(machine, num_slots=slots, width=width)
            case CompressiveTransformerSettings():
                return replace(machine, num_slots=slots, num_layers=1)
            case HPMNSettings():
                return replace(machine, num_slots=slots, num_layers=slots // 2)
            case DNCSettings() | NUTMSettings() | DMSDNCSettings() | STMSettings() | MIMNSettings():
                return replace(machine, num_slots=slots)
        return machine

    return sized


def natives(paper: Run) -> list[Run]:
    """Methods with the sizes, reader and optimiser of their authors on bAbI, whose numbers the paper quotes.

    Steps are their epochs over our stories; docs/baselines.md says what differs.
    """
    model = replace(without_rehearsal(paper.model), item_dim=64, model_dim=64)
    # theirs is added to the mean square, under the root, and is 1e-10: 1e-5 beside the root comes to about the same
    words = replace(
        paper.train, schedule="constant", warmup_steps=0, batch_size=32, optimizer="rmsprop", momentum=0.9, beta2=0.9,
        epsilon=1e-5,
    )  # fmt: skip
    stm = replace(words, batch_size=128, optimizer="adam", momentum=0.0, beta2=0.99, epsilon=1e-8, warmup_steps=444)

    def row(method: str, machine: BaselineSettings, item_std: float, train: TrainSettings) -> Run:
        own = replace(model, machine=machine, embedding=replace(model.embedding, item_std=item_std))
        return replace(paper, method=method, model=own, train=train)

    dnc = DNCSettings(num_slots=256, slot_dim=64, controller_dim=256, norm_interface=False)
    nutm = NUTMSettings(num_slots=192, slot_dim=64, controller_dim=172, norm_controller=True)
    dmsdnc = DMSDNCSettings(num_slots=256, slot_dim=48, controller_dim=256, norm_interface=False)
    return [
        row(
            "dnc-native", NativeWordSettings(memory=dnc), 0.1,
            replace(words, steps=100_000, learning_rate=1e-4, clip_norm=10.0),
        ),
        row(
            "nutm-native", NativeWordSettings(memory=nutm), 0.1,
            replace(words, steps=88_000, learning_rate=3e-5, clip_norm=10.0),
        ),
        row(
            "dmsdnc-native", NativeWordSettings(memory=dmsdnc, bypass_dropout=0.1), 0.1,
            replace(words, steps=97_600, learning_rate=3e-5, clip_norm=50.0),
        ),
        row(
            "stm-native", NativeSTMSettings(), 0.06,
            replace(stm, steps=222_000, learning_rate=6e-4, clip_norm=5.0),
        ),
    ]  # fmt: skip
