"""Which model stands for which task: the paper's sizes (Sec. 4.1 to 4.3), and ours with what each task needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from remem.settings.model import DeltaSettings, ModelSettings, rm_improvements, with_machine

PAPER = ModelSettings()  # d_x = d_model = 128, K = 20, B = 6, two hops: the settings of both tasks here
RM = rm_improvements(PAPER)
# Short stories: questions share the stories' words, dropout against learning them by heart, and a light rehearsal:
# at its full weight it gets in the way of the answers.
RM_TEXT = replace(
    RM,
    machine=with_machine(RM, dropout=0.1).machine,
    reasoner=replace(RM.reasoner, tie_query_words=True),
    rehearsal=replace(RM.rehearsal, recollection_weight=0.1, familiarity_weight=0.05),
)
# All twenty tasks: some answers are in no slot alone, so slots meet before they are read. With stories told in other
# words each time full rehearsal is no burden, and its fragments are drawn by chance: no sampler to train first.
RM_STORIES = replace(
    RM_TEXT,
    machine=with_machine(RM_TEXT, encoder_layers=1).machine,
    reasoner=replace(RM_TEXT.reasoner, slot_layers=2, dropout=0.1),
    rehearsal=replace(RM.rehearsal, sampler="random"),
)

# The long sequences of Sec. 4.3: d = 256 and two hops for text and video, d = 64 and one hop for recommendation. J is
# all other words, 30 frames of the same video, 200 other items.
PAPER_LONG = replace(PAPER, item_dim=256, model_dim=256)
PAPER_VIDEO = replace(PAPER_LONG, rehearsal=replace(PAPER.rehearsal, num_distractors=30, distractors_from="stream"))
PAPER_CLICKS = replace(
    PAPER, item_dim=64, model_dim=64, reasoner=replace(PAPER.reasoner, num_hops=1),
    rehearsal=replace(PAPER.rehearsal, num_distractors=200, distractors_from="item-set"),
)  # fmt: skip


def _improved(paper: ModelSettings, *, dropout: float, light: bool = False, **reasoner: Any) -> ModelSettings:
    """`rm` for a long task: thinking layers, and dropout, as there are few streams; `light` rehearses as `RM_TEXT`.

    Only a Transformer encoder drops: the reasoner's dropout, which the records hold, does nothing without slot layers.
    """
    model = rm_improvements(paper)
    scale = 0.1 if light else 1.0
    return replace(
        model,
        machine=with_machine(model, dropout=dropout).machine,
        reasoner=replace(model.reasoner, thinking_layers=True, dropout=dropout, **reasoner),
        rehearsal=replace(model.rehearsal, recollection_weight=scale, familiarity_weight=scale / 2),
    )


RM_PASSAGE = _improved(
    PAPER_LONG, dropout=0.1, light=True, compare=True, tie_query_words=True, match_candidates=True
)  # fmt: skip
# A memory that can be read by the words themselves: sentences take turns at the slots, which are sums of their words.
RM_TURNS = replace(
    with_machine(
        RM_PASSAGE, encoder_layers=0, copy_start=True, keep_bias=4.0, aligned_gain=0.3, turns=3, weigh_items=True
    ),
    reasoner=replace(RM_PASSAGE.reasoner, match_words=True, match_strength=2.3, match_rare_first=True),
    rehearsal=replace(RM_PASSAGE.rehearsal, sampler="random"),
)
# Frames are alike one after another: slots start as sums of them, and the bi-GRU of Table 6 was ahead on validation.
RM_VIDEO = with_machine(
    _improved(PAPER_VIDEO, dropout=0.3, light=True), encoder="gru", copy_start=True
)  # fmt: skip
# Most clicks are on items met before: slots start as sums of items, and keep; target and evidence are compared.
RM_CLICKS = with_machine(
    _improved(PAPER_CLICKS, dropout=0.3, compare=True), copy_start=True, keep_bias=3.0
)  # fmt: skip


def _delta(model: ModelSettings, *, keep_bias: float, match_items: bool) -> ModelSettings:
    """A memory that can tell what it holds: where few items make up most of a stream, only what is new is written."""
    return replace(
        model,
        machine=DeltaSettings(keep_bias=keep_bias),
        reasoner=replace(model.reasoner, match_items=match_items),
        rehearsal=replace(model.rehearsal, sampler="random"),
    )


RM_DELTA_CLICKS = _delta(RM_CLICKS, keep_bias=5.0, match_items=True)
RM_DELTA_VIDEO = _delta(RM_VIDEO, keep_bias=8.0, match_items=False)

SMALL_SLOTS = 8


def small(model: ModelSettings, width: int) -> ModelSettings:
    """The same method at sizes that one core of a CPU trains in minutes."""
    return replace(
        with_machine(model, num_slots=SMALL_SLOTS, encoder_layers=1),
        item_dim=width,
        model_dim=width,
        rehearsal=replace(model.rehearsal, num_fragments=2, decoder_layers=1),
    )


# With one narrow layer a Transformer is slow to learn what stands behind what; a bi-GRU has the order for nothing.
RM_SHORT = with_machine(small(RM, 48), encoder="gru", copy_start=True, keep_bias=1.0)
