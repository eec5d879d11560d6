"""Settings of a run: what is trained, on what, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from remem.settings.model import ModelSettings
from remem.settings.tasks import SyntheticTask, Task


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """One training stage: optimiser, schedule, stopping, guards."""

    steps: int = 6000
    """Optimiser steps at most."""
    batch_size: int = 256
    """Streams a step."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """What makes a step of a gradient."""
    learning_rate: float = 1e-3
    """Highest learning rate: where the warm-up ends and the schedule begins."""
    momentum: float = 0.0
    """Momentum of RMSprop; Adam keeps nine tenths of its mean gradient whatever is given here."""
    beta2: float = 0.999
    """Share of the mean square of the gradient that a step keeps: Adam's beta_2, RMSprop's alpha."""
    epsilon: float = 1e-8
    """What is added to the root of the mean square, by which the gradient is divided."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: held, or lowered along a cosine."""
    last_rate: float = 0.1
    """Share of the learning rate that is left at the end of the cosine."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises from zero."""
    weight_decay: float = 0.0
    """Ours: decoupled weight decay on matrices, as a share of the learning rate; 0 is plain Adam."""
    focus: float = 0.0
    """Ours: how much more often a part of the task (one of bAbI's twenty) is drawn while a fifth of its answers or more
    are wrong in validation than once all are right, parts having equal shares otherwise; 0 draws every stream once an
    epoch."""
    focus_brevity: float = 0.5
    """By which power of its streams' mean length a part is drawn less often for it: 0 gives long and short ones equal
    shares, 1 as much to read."""
    focus_streams: float = 0.0
    """Ours: how much more often a stream is drawn than others of its part while an answer about it was wrong when it
    was last trained on, words exchanged or not, once the part itself is learned; 0 draws them alike. Needs a focus."""
    lead: tuple[str, ...] = ()
    """Ours: parts of the task that come first, in stages: `qa16 qa1+qa2` is qa16 alone, then qa1 and qa2 with it, then
    all; needs a focus."""
    lead_share: float = 1.0
    """Share of the streams that are theirs meanwhile, the others being drawn as ever; 1 trains on them alone."""
    lead_steps: int = 0
    """Steps of a stage at most, up to the next validation."""
    lead_until: float = 0.0
    """A stage is over sooner once a validation finds no more than so many percent of each of its parts wrong."""
    lead_tries: int = 1
    """How often the lead may begin: where `lead_steps` go by and its first stage has not come down to `lead_until`,
    other initial weights are drawn and it begins anew; all of it counts as steps."""
    lead_stays: bool = False
    """Whether parts of the first stage are drawn as often as ones with all answers wrong, also once learned; until
    `rehearse_for` is over, where that is given."""
    rehearse_for: int | None = None
    """Ours: steps over which the memory rehearses, or streams ask by themselves, counted from the end of the lead, or
    from the first where nothing leads; from then on it learns by its answers alone. None does so to the last step."""
    only: tuple[str, ...] = ()
    """Ours: parts of the model (`reasoner`) that are trained, while others stay as they are; all if none is named."""
    clip_norm: float = 5.0
    """Largest gradient norm of a step."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Arithmetic of the forward pass; slots, softmaxes and losses stay in float32. auto is bf16 on a GPU that has it,
    whose kernels are made for it, and float32 elsewhere."""
    max_seconds: float = 0.0
    """Stop after this long, as if the last step had been reached; 0 sets no limit."""
    eval_every: int = 500
    """Steps between validations."""
    patience: int = 0
    """Stop after this many validations without a better score; 0 never stops early."""
    checkpoint_every: int = 500
    """Steps between checkpoints from which a run can go on."""
    log_every: int = 50
    """Steps between lines in TensorBoard."""
    capture: bool = True
    """On a GPU, capture the whole step as a CUDA graph, one for each batch shape; a CPU ignores this."""
    compile: bool | None = None
    """Compile the model's layers (`torch.compile`); None does so where it pays for the minute that it takes: on a GPU
    in runs of 2,000 steps or more and for the rivals of RM, on a CPU with a C++ compiler in runs of 300 steps or more
    for memories that read item by item."""
    nan_budget: int = 3
    """Steps with a non-finite loss or gradient that may be skipped before the run stops."""


def _sampler_training() -> TrainSettings:
    return TrainSettings(batch_size=1024, eval_every=1000)


def _no_pretraining() -> TrainSettings:
    return TrainSettings(steps=0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A whole run: `remem train TASK/METHOD` starts from a preset of this."""

    method: str = "rm"
    """Row of the table this run stands for."""
    seed: int = 0
    """Seed of initial weights, batches, masks and dropout."""
    task: Task = field(default_factory=SyntheticTask)
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    sampler_train: TrainSettings = field(default_factory=_sampler_training)
    """Stage one: the history sampler, trained by itself and then frozen."""
    pretrain: TrainSettings = field(default_factory=_no_pretraining)
    """Before the model learns to answer: rehearsal alone, on streams without questions; 0 steps leave it out."""
