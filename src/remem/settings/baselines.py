"""Settings of the methods the paper compares with: its sizes as defaults, the rest as the original works have it.

Each stands where `MachineSettings` stands for rehearsal memory: embedding, reasoner and rehearsal are the same for all.
The two `Native` ones have their own reader, so that of these only the embedding is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class DNCSettings:
    """Differentiable Neural Computer: an LSTM that writes by content or into free slots, item by item."""

    num_slots: int = 20
    """Memory slots (K; N in the DNC's own paper)."""
    slot_dim: int | None = None
    """Width of a slot (W); None takes that of an item."""
    controller_dim: int | None = None
    """Width of the LSTM controller (H); None takes that of an item."""
    num_reads: int = 4
    """Read heads (R)."""
    masked: bool = False
    """Key masks: a lookup may leave parts of a slot out of the comparison (Csordas & Schmidhuber, 2019)."""
    deallocate: bool = False
    """A freed slot is wiped, not only free to be written over (the same)."""
    sharpen: bool = False
    """Steps along the order of writes are sharpened (the same)."""
    norm_interface: bool = True
    """LayerNorm on the controller's commands, which keeps training stable; the original has none."""


@dataclass(frozen=True, kw_only=True)
class NUTMSettings:
    """Neural stored-program memory on a DNC core without links: what the controller asks for is itself looked up."""

    num_slots: int = 20
    """Memory slots (K)."""
    slot_dim: int | None = None
    """Width of a slot (W); None takes that of an item."""
    controller_dim: int | None = None
    """Width of the LSTM controller (H); None takes that of an item."""
    num_reads: int = 4
    """Read heads (R)."""
    num_programs: int = 4
    """Stored programs (cores)."""
    key_dim: int = 4
    """Width of a program's key."""
    key_loss_weight: float = 0.1
    """Weight of the loss that keeps programs' keys apart."""
    norm_controller: bool = False
    """LayerNorm on the controller's output, as the original has it on bAbI."""


@dataclass(frozen=True, kw_only=True)
class DMSDNCSettings:
    """Distributed memory with a self-supervised loss: two small DNC memories side by side, and inputs to reproduce."""

    num_slots: int = 20
    """Memory slots of all blocks together (K)."""
    slot_dim: int | None = None
    """Width of a slot (W); None takes that of an item."""
    controller_dim: int | None = None
    """Width of the LSTM controller (H); None takes that of an item."""
    num_reads: int = 4
    """Read heads (R)."""
    num_blocks: int = 2
    """Memory blocks, which share the slots evenly."""
    reproduced: float = 0.1
    """Share of the items that must be reproduced while training (p)."""
    reproduction_weight: float = 1.0
    """Weight of that loss."""
    bypass_dropout: float = 0.1
    """Dropout between controller and reproduction, which makes it use the memory."""
    norm_interface: bool = True
    """LayerNorm on the controller's commands, besides the one on its output; the original has none."""


@dataclass(frozen=True, kw_only=True)
class STMSettings:
    """Self-attentive associative memory: an item memory and a relational one, written segment by segment."""

    num_slots: int = 20
    """Slots the reasoner sees (K)."""
    width: int | None = 96
    """Width of both memories (s); None makes the state as large as K slots of rehearsal memory."""
    num_queries: int = 8
    """Queries, and relations kept (n_q)."""
    hidden_dim: int = 80
    """Width of the hidden layers that read a segment."""


@dataclass(frozen=True, kw_only=True)
class CompressiveTransformerSettings:
    """Compressive Transformer: what leaves the short-term queue is compressed into a second one."""

    num_slots: int = 20
    """Compressed rows of a layer, of which the reasoner sees the top layer's (K)."""
    num_layers: int = 3
    """Transformer layers."""
    num_heads: int = 4
    """Attention heads."""
    rate: int = 5
    """Rows that become one (c)."""
    dropout: float = 0.1
    """Dropout of the layers while training."""
    horizon: int | None = None
    """Segments through which gradients flow; None never cuts them."""
    auxiliary_weight: float = 1.0
    """Weight of the attention-reconstruction loss of the compression."""


@dataclass(frozen=True, kw_only=True)
class HPMNSettings:
    """Hierarchical periodic memory: a tower of GRUs, each slower than the one beneath it."""

    num_slots: int = 20
    """Slots the reasoner sees (K): each layer's state is cut into K / D of them."""
    num_layers: int = 10
    """Layers (D); with a period of 2 the slowest of ten moves every 512 items."""
    period: int = 2
    """How many times slower a layer is than the one beneath it."""
    covariance_weight: float = 0.025
    """Weight of the loss that keeps layers from saying the same."""


@dataclass(frozen=True, kw_only=True)
class MIMNSettings:
    """Multi-channel user interest memory: a neural Turing machine with a channel of interest beside each slot."""

    num_slots: int = 20
    """Memory slots, and channels (K; m in MIMN's own paper)."""
    slot_dim: int | None = None
    """Width of a slot and of a channel; None takes that of an item."""
    controller_dim: int | None = None
    """Width of the GRU controller; None takes that of an item."""
    horizon: int = 1000
    """Items of which a slot's share of the writes is counted; in longer streams older ones fade."""
    induction: bool = True
    """The memory induction unit: the channel of the slot that was read most goes on with the item."""
    utilisation: bool = True
    """Memory utilisation: writes are shifted and sharpened by what was written before, and balanced by a loss."""
    utilisation_weight: float = 1e-3 / 256
    """Weight of that loss."""


@dataclass(frozen=True, kw_only=True)
class DirectSettings:
    """No memory: the whole stream is read again for every question, so nothing is bounded (Appendix B)."""

    attention: bool = False
    """Answer by the reasoner's hops over all states (Multi-Hop Reason), not from the last one (Directly Reason)."""


@dataclass(frozen=True, kw_only=True)
class GRU4RecSettings:
    """GRU4REC: a GRU reads the history, and its last state is compared with the target."""

    hidden_dim: int | None = None
    """Width of the GRU; None takes that of an item."""
    appended: bool = False
    """Read the target as one more item before it is compared, as the program behind the published number does."""
    dropout: float = 0.2
    """Dropout of the layers that make a logit."""


@dataclass(frozen=True, kw_only=True)
class CaserSettings:
    """Caser: the history as an image, under horizontal and vertical convolutions."""

    heights: tuple[int, ...] = (2, 4, 8, 16)
    """Heights of the horizontal filters, in items."""
    filters_per_height: int = 16
    """Horizontal filters of each height (n_h)."""
    vertical_filters: int = 4
    """Vertical filters (n_v)."""
    window: int = 1000
    """Items under a vertical filter (L), the last ones before the question."""
    image_dropout: float = 0.5
    """Dropout on what the filters found."""
    dropout: float = 0.2
    """Dropout of the layers that make a logit."""


@dataclass(frozen=True, kw_only=True)
class RUMSettings:
    """Recommender with user memory, item level: the history is a memory that the target reads by attention."""

    memory_items: int | None = None
    """Items the memory holds, the last ones (K); None holds all of them."""
    dropout: float = 0.2
    """Dropout of the layers that make a logit."""


@dataclass(frozen=True, kw_only=True)
class DIENSettings:
    """Deep interest evolution: interests by a GRU, and a second one that the target's attention opens."""

    hidden_dim: int | None = None
    """Width of both GRUs; None takes that of an item."""
    auxiliary_weight: float = 1.0
    """Weight of the loss on the next behaviour (alpha)."""
    dropout: float = 0.2
    """Dropout of the layers that make a logit."""


ClickSettings = GRU4RecSettings | CaserSettings | RUMSettings | DIENSettings
"""Models of a click that read the whole history again for every target."""


@dataclass(frozen=True, kw_only=True)
class NativeWordSettings:
    """A memory that reads word by word, as its authors ran it: it reads the questions, too, and answers by itself."""

    memory: DNCSettings | NUTMSettings | DMSDNCSettings = field(default_factory=DNCSettings)
    """The memory itself, with the sizes of the original."""
    bypass_dropout: float = 0.0
    """Dropout between controller and answer, which makes it use the memory."""


@dataclass(frozen=True, kw_only=True)
class NativeSTMSettings:
    """STM as its authors ran it: its own reader asks the relational memory three times over."""

    width: int = 90
    """Width of both memories (s)."""
    num_queries: int = 20
    """Queries, and relations kept (n_q)."""
    hidden_dim: int = 80
    """Width of the hidden layers that read a sentence or a question."""


@dataclass(frozen=True, kw_only=True)
class ASReaderSettings:
    """Attention sum reader: points at the words of the whole text (NarrativeQA)."""

    word_std: float = 0.06
    """Standard deviation of the initial words, that of the original's uniform ones between -0.1 and 0.1."""
    dropout: float = 0.1
    """Dropout on the words' vectors while training."""


@dataclass(frozen=True, kw_only=True)
class E2EMNSettings:
    """End-to-end memory network: hops over all sentences, each a bag of words (NarrativeQA)."""

    num_hops: int = 3
    """Hops (K in its own paper)."""
    num_ages: int = 128
    """Sentences told apart by how long ago they were read; whatever is older counts as the oldest."""
    time_noise: float = 0.1
    """Share of empty sentences put in at random while training, so that ages vary."""
    word_std: float = 0.02
    """Standard deviation of the initial words and ages; its own paper has 0.1, for bags a fifth as wide."""
    dropout: float = 0.5
    """Dropout on the words' vectors while training."""


@dataclass(frozen=True, kw_only=True)
class EVQASettings:
    """E-VQA: an LSTM over the video, multiplied with the question (ActivityNet-QA)."""

    num_positions: int = 20
    """Positions of a video, evenly spread, each the mean of its share of the frames."""
    dropout: float = 0.1
    """Dropout before the last layer while training."""


@dataclass(frozen=True, kw_only=True)
class EMNSettings:
    """E-MN: a memory network over a bi-directional LSTM's states (ActivityNet-QA)."""

    num_positions: int = 20
    """Positions of a video, evenly spread, each the mean of its share of the frames."""
    num_hops: int = 3
    """Hops."""
    dropout: float = 0.1
    """Dropout before the last layer while training."""


@dataclass(frozen=True, kw_only=True)
class ESASettings:
    """E-SA: soft attention over the video, guided by the question (ActivityNet-QA)."""

    num_positions: int = 20
    """Positions of a video, evenly spread, each the mean of its share of the frames."""
    dropout: float = 0.1
    """Dropout before the last layer while training."""


@dataclass(frozen=True, kw_only=True)
class HCRNSettings:
    """Hierarchical conditional relation network: relations of frames, then of clips (ActivityNet-QA)."""

    num_clips: int = 8
    """Clips of a video."""
    clip_len: int = 16
    """Frames of a clip, evenly spread, each the mean of its share of the frames there are."""
    dropout: float = 0.15
    """Dropout on questions, relations and before the last layer while training."""


@dataclass(frozen=True, kw_only=True)
class BlindSettings:
    """Ours: answers from the question alone, to show what a task gives away without its streams."""

    dropout: float = 0.1
    """Dropout before the last layer while training."""


QuestionAnswerSettings = (
    ASReaderSettings | E2EMNSettings | EVQASettings | EMNSettings | ESASettings | HCRNSettings | BlindSettings
)

BaselineSettings = (
    DNCSettings
    | NUTMSettings
    | DMSDNCSettings
    | STMSettings
    | CompressiveTransformerSettings
    | HPMNSettings
    | MIMNSettings
    | DirectSettings
    | GRU4RecSettings
    | CaserSettings
    | RUMSettings
    | DIENSettings
    | NativeWordSettings
    | NativeSTMSettings
    | QuestionAnswerSettings
)
