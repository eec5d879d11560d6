"""Settings of the model: the paper's symbols, with the paper's values as defaults (Sec. 4.1, Appendices A and B).

The defaults are the equations to the letter (`rm-paper`). Every field whose help starts with "Ours" departs from the
printed text where it is set; `rm_improvements` sets those that make `rm`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from remem.settings.baselines import BaselineSettings


@dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """Rehearsal memory machine G (Sec. 3.2)."""

    num_slots: int = 20
    """Memory slots (K)."""
    encoder: Literal["transformer", "gru"] = "transformer"
    """Segment encoder: the Transformer, or the bi-directional GRU of the ablation (Table 6)."""
    encoder_layers: int = 3
    """Transformer encoder layers."""
    num_heads: int = 4
    """Attention heads of the encoder."""
    dropout: float = 0.0
    """Dropout on the output of each sub-layer of a Transformer encoder and inside its feed-forward; a GRU has none, and
    the paper names none."""
    aligned_gain: float = 1.0
    """Ours: constant factor on the aligned features l_k, which Eq. 1 leaves about K times smaller than the items."""
    write_score_gain: float = 1.0
    """Ours: factor on the initial w_a of Eq. 1; without it the first scores are nearly flat over the slots."""
    keep_bias: float = 0.0
    """Ours: initial bias of the update gate of Eq. 2 towards keeping; at 0 half of every slot is lost each segment."""
    keep_spread: float = 0.0
    """Ours: by how much this bias rises over the numbers of a slot, from the first to the last, so that some of them
    learn soon and others last (the chrono initialisation of Tallec and Ollivier, ICLR 2018, in even steps)."""
    copy_start: bool = False
    """Ours: the candidate of Eq. 2 starts as tanh(l_k / 2), so that a slot is at first a fading sum of its items."""
    turns: int = 0
    """Ours: slots take turns, each for so many segments in which its scores of Eq. 1 are raised, so that what stands
    together is kept together; 0 leaves it to the scores alone."""
    recent: int = 0
    """Ours: so many of the K rows are the last segments as they are, newest first, and slots are the others; 0 keeps
    slots alone."""
    weigh_items: bool = False
    """Ours: each feature is multiplied by a learned weight 2 sigma(v^T f + c) before it is written; in Eq. 1 every item
    hands out one unit of itself, whatever it is worth."""
    slot_identity: bool = False
    """Ours: a learned vector per slot inside the tanh of Eq. 1, so that slots can differ by what they are for."""


@dataclass(frozen=True, kw_only=True)
class DeltaSettings:
    """Ours: rehearsal memory whose slots take what they lack of an item, and no more (`remem.model.delta`)."""

    num_slots: int = 20
    """Memory slots (K)."""
    keep_bias: float = 5.0
    """What the slots keep at each segment, as the logit of a share, to begin with; 5 is 0.993."""


@dataclass(frozen=True, kw_only=True)
class ReasonerSettings:
    """Multi-hop reasoner R (Appendix A)."""

    num_hops: int = 2
    """Reasoning hops (C in Appendix A): 2, 2, 2 and 1 for synthetic, text, video and recommendation."""
    read_score_gain: float = 1.0
    """Ours: factor on the initial w_c of each hop; without it the first reads average all slots."""
    read_norm: bool = False
    """Ours: LayerNorm on the memory where the reasoner reads it."""
    thinking_layers: bool = False
    """Ours: q <- LayerNorm(q + W_2 relu(W_1 [e; q])) in each hop instead of W^q [e; q], which is linear throughout."""
    compare: bool = False
    """Ours: these layers see the product of evidence and question as well, element by element; and as at first both
    are taken as they are, a target item meets what the memory holds of it."""
    slot_layers: int = 0
    """Ours: Transformer layers in which question and slots see one another before the hops; in the paper slots never
    meet, so that what two of them say together must be put together while writing."""
    slot_heads: int = 4
    """Attention heads of these layers."""
    match_rows: bool = False
    """Ours: in these layers question and slots look at one another, none at itself, and at first at those most like
    it: queries and keys start as the rows themselves."""
    dropout: float = 0.0
    """Dropout of the slot layers; thinking layers have none, so that without slot layers it does nothing."""
    question: Literal["gru", "sum"] = "gru"
    """What reads a question of words: a bi-directional GRU; or, ours, the sum of its words, each weighed by its
    place."""
    tie_query_words: bool = False
    """Ours: questions share the items' embedding, where both are words of one vocabulary."""
    match_candidates: bool = False
    """Ours: the inner product of reason and candidate is added to a candidate's score."""
    match_words: bool = False
    """Ours: a candidate's score grows with what its words and the question's have in common with the same slots, by
    inner products of their embeddings, which tell words apart that were never met in training."""
    match_strength: float = 1.5
    """Logarithm of what that weighs to begin with (lambda of `WordMatch`)."""
    match_rare_first: bool = False
    """Rare words weigh more in it than frequent ones to begin with; else all weigh the same."""
    match_items: bool = False
    """Ours: the logit of a click grows with how much of the target the slots hold; for slots that can tell
    (`DeltaSettings`)."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """Item embedding (Appendix B) and the position code of a segment, which the paper leaves open."""

    item_std: float = 1.0
    """Standard deviation of the initial item embeddings; 1.0 is the framework's default."""
    position: Literal["sinusoid", "learned"] = "sinusoid"
    """Position code of the encoder and the decoder: Vaswani et al.'s sinusoids, or a learned table."""
    position_std: float = 0.3
    """Standard deviation of the initial learned positions."""


@dataclass(frozen=True, kw_only=True)
class RehearsalSettings:
    """Self-supervised rehearsal (Sec. 3.3): decoder H, fragments, losses, and who chooses what to rehearse."""

    recollection_weight: float = 1.0
    """Weight of the recollection loss (lambda_1); 0 switches it off."""
    familiarity_weight: float = 0.5
    """Weight of the familiarity loss (lambda_2); 0 switches it off."""
    reason_weight: float = 1.0
    """Weight of the task's own loss (lambda_3)."""
    per_stream: bool = False
    """Ours: the task's own loss is a mean over streams of the mean over each one's questions, so that a stream with one
    question counts as much as one with ten."""
    sampler: Literal["history", "random"] = "history"
    """Who chooses the fragments: the trained history sampler S, or chance (Table 5)."""
    sampler_from: Path | None = None
    """Folder of an already trained history sampler; without it one is trained first."""
    num_fragments: int = 6
    """History fragments of a stream (B), half from each half of the stream."""
    mask_ratio: float = 0.5
    """Share of a fragment's items that are masked; 0.15 for the ablation of Table 6."""
    replace_ratio: float = 0.5
    """Share of the unmasked items that a negative fragment takes from other streams."""
    num_distractors: int | None = None
    """Distractors of the recollection loss (J); None contrasts with all other items."""
    distractors_from: Literal["item-set", "stream"] = "item-set"
    """Where J distractors are drawn: the whole item set (recommendation), or the same stream (video)."""
    decoder_layers: int = 3
    """Transformer decoder layers."""
    num_heads: int = 4
    """Attention heads of the decoder."""
    dropout: float = 0.0
    """Dropout on the output of each sub-layer of the rehearsal decoder and inside its feed-forward."""
    anytime: bool = False
    """Ours: rehearse from the memory at a random moment before the question, not only at the question itself."""
    read_norm: bool = False
    """Ours: LayerNorm on the memory where the decoder reads it."""
    scaled_recall: bool = False
    """Ours: divide the inner products of Eq. 3 by sqrt(d_x), so that they start at a scale a softmax can learn from."""

    ask_weight: float = 0.0
    """Ours: weight of questions that a story asks the reasoner by itself: a sentence with a word left out, before it is
    read or after; 0 asks none. For streams of words with questions of words."""
    asks: int = 4
    """Questions that a stream asks by itself in a step, half of them before their sentence is read."""

    @property
    def enabled(self) -> bool:
        """Whether the decoder rehearses at all."""
        return self.recollection_weight > 0 or self.familiarity_weight > 0

    @property
    def beside_answers(self) -> bool:
        """Whether anything is trained beside the answers: by the decoder, or by questions of a story's own."""
        return self.enabled or self.ask_weight > 0


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """A whole model: embedding, memory machine (or another method in its place), rehearsal decoder and reasoner."""

    item_dim: int = 128
    """Width of items and slots (d_x)."""
    model_dim: int = 128
    """Width of queries and attention (d_model)."""
    pre_norm: bool = False
    """Ours: LayerNorm before each Transformer sub-layer; published is after it."""
    weights_from: Path | None = None
    """Folder of a trained model of the same kind and vocabulary, from whose weights training goes on."""
    fresh: tuple[str, ...] = ()
    """Parts of the model (`reasoner`) that take nothing over from there, but start as if there were nothing."""
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    machine: MachineSettings | DeltaSettings | BaselineSettings = field(default_factory=MachineSettings)
    reasoner: ReasonerSettings = field(default_factory=ReasonerSettings)
    rehearsal: RehearsalSettings = field(default_factory=RehearsalSettings)


def rm_improvements(paper: ModelSettings) -> ModelSettings:
    """From `rm-paper` to `rm`: every departure that `rm` makes; what each is worth is in docs/learning.md."""
    return replace(
        paper,
        pre_norm=True,
        embedding=replace(paper.embedding, position="learned"),
        machine=with_machine(paper, aligned_gain=5.0, write_score_gain=4.0, slot_identity=True).machine,
        reasoner=replace(paper.reasoner, read_score_gain=4.0, read_norm=True),
        rehearsal=replace(paper.rehearsal, scaled_recall=True, read_norm=True, anytime=True),
    )


def with_machine(model: ModelSettings, **changes: Any) -> ModelSettings:
    """The same model with some fields of its memory changed."""
    return replace(model, machine=replace(model.machine, **changes))


def without_rehearsal(model: ModelSettings) -> ModelSettings:
    """The ablation RM (w/o. rehearsal): only the task's own loss."""
    silent = replace(model.rehearsal, recollection_weight=0.0, familiarity_weight=0.0, ask_weight=0.0)
    return replace(model, rehearsal=silent)
