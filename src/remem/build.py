"""From settings to modules: the one place that sees both."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from torch import nn

from remem.baselines.as_reader import ASReader
from remem.baselines.blind import Blind
from remem.baselines.caser import Caser
from remem.baselines.click import ClickModel
from remem.baselines.compressive_transformer import CompressiveTransformer
from remem.baselines.dien import DIEN
from remem.baselines.directly_reason import DirectlyReason, StreamReader
from remem.baselines.dmsdnc import DMSDNC
from remem.baselines.dnc import DNC
from remem.baselines.e2e_mn import E2EMN
from remem.baselines.e_mn import EMN
from remem.baselines.e_sa import ESA
from remem.baselines.e_vqa import EVQA
from remem.baselines.gru4rec import GRU4Rec
from remem.baselines.hcrn import HCRN
from remem.baselines.hpmn import HPMN
from remem.baselines.mimn import MIMN
from remem.baselines.multi_hop_reason import MultiHopReason
from remem.baselines.native import NativeWordModel
from remem.baselines.native_stm import AssociativeReader, NativeSTM
from remem.baselines.nutm import NUTM
from remem.baselines.rum import RUM
from remem.baselines.stm import STM, TwoMemories, matched_width
from remem.data.codec import AnswerKind, ClickCodec, Codec, PassageCodec, TextCodec
from remem.ends import build_embedding, build_head, build_query_encoder, item_embedding
from remem.errors import BadInput
from remem.model.assembly import MemoryModel
from remem.model.delta import DeltaMachine, ItemMatch
from remem.model.embed import (
    Embedding,
    ItemEmbedding,
    QueryEncoder,
    SentenceQueryEncoder,
)
from remem.model.encoder import GRUEncoder, TransformerEncoder
from remem.model.machine import MemoryMachine
from remem.model.matching import WordMatch
from remem.model.own_questions import Asker
from remem.model.reasoner import MultiHopReasoner
from remem.model.recent import RecentMachine
from remem.model.rehearsal import RehearsalDecoder
from remem.model.sampler import HistorySampler
from remem.model.transformer import PositionCode
from remem.model.turns import TurnMachine
from remem.model.writer import SlotWriter
from remem.settings.baselines import (
    ASReaderSettings,
    BaselineSettings,
    BlindSettings,
    CaserSettings,
    ClickSettings,
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
    QuestionAnswerSettings,
    RUMSettings,
    STMSettings,
)
from remem.settings.model import DeltaSettings, EmbeddingSettings, MachineSettings, ModelSettings

MOST_NAMED = 100_000  # with more items than this, a method that learns to name what it reads has nothing to name

VideoModel = EVQA | EMN | ESA | HCRN
Reader = DirectlyReason | MultiHopReason | ASReader | E2EMN | VideoModel | Blind | ClickModel
Model = MemoryModel | Reader | NativeWordModel | NativeSTM


def build_model(settings: ModelSettings, codec: Codec) -> Model:
    """The model of any method for a task's codec."""
    if isinstance(settings.machine, DirectSettings):
        return build_direct(settings, codec)
    if isinstance(settings.machine, ClickSettings):
        return build_click(settings, codec)
    if isinstance(settings.machine, QuestionAnswerSettings):
        return build_question_answerer(settings, codec)
    if isinstance(settings.machine, NativeWordSettings | NativeSTMSettings):
        return build_native(settings, codec)
    return build_memory_model(settings, codec)


def build_memory_model(settings: ModelSettings, codec: Codec) -> MemoryModel:
    """Embedding, memory, reasoner and head, with a decoder if anything is rehearsed."""
    embed = build_embedding(settings, codec)
    query_encoder = build_query_encoder(settings, codec, embed)
    memorizer = build_memorizer(settings, codec)
    return MemoryModel(
        embed=embed,
        memorizer=memorizer,
        query_encoder=query_encoder,
        reasoner=_reasoner(settings, settings.item_dim),
        head=build_head(settings, codec, settings.model_dim, query_encoder),
        decoder=_decoder(settings, codec.segment_len) if settings.rehearsal.enabled else None,
        match=_match(settings, codec, embed, memorizer),
        asker=_asker(settings, embed, query_encoder),
    )


def _asker(settings: ModelSettings, embed: Embedding, query_encoder: QueryEncoder) -> Asker | None:
    weight = settings.rehearsal.ask_weight
    if not weight:
        return None
    if not isinstance(embed, ItemEmbedding) or not isinstance(query_encoder, SentenceQueryEncoder):
        raise BadInput(
            f"--model.rehearsal.ask-weight {weight:g} lets a stream ask about its own sentences, in words; this task's "
            "streams or questions have none. Leave it 0."
        )
    return Asker(item_dim=settings.item_dim, model_dim=settings.model_dim)


def _match(
    settings: ModelSettings, codec: Codec, embed: Embedding, memorizer: nn.Module
) -> WordMatch | ItemMatch | None:
    if settings.reasoner.match_items:
        if not isinstance(memorizer, DeltaMachine) or not isinstance(embed, ItemEmbedding):
            raise BadInput(
                "--model.reasoner.match-items asks the slots how much of an item they hold, which those of a "
                f"{type(memorizer).__name__} can't tell. Take a method such as rm-delta, or leave it False."
            )
        if codec.answer_kind != AnswerKind.CLICK:
            raise BadInput("--model.reasoner.match-items is for tasks whose questions are items; leave it False.")
        return ItemMatch(items=embed.table, addresses=memorizer.addresses)
    if not settings.reasoner.match_words:
        return None
    if codec.answer_kind != AnswerKind.CANDIDATES or not isinstance(embed, ItemEmbedding):
        raise BadInput(
            "--model.reasoner.match-words compares the words of candidates with those of a text; this task has no such "
            "candidates. Leave it False."
        )
    reasoner = settings.reasoner
    return WordMatch(words=embed.table, strength=reasoner.match_strength, rare_first=reasoner.match_rare_first)


def build_direct(settings: ModelSettings, codec: Codec) -> DirectlyReason | MultiHopReason:
    """A model that reads the whole stream; it has no memory, so there is nothing to rehearse from."""
    _refuse_rehearsal(settings)
    if not isinstance(settings.machine, DirectSettings):
        raise BadInput(f"{type(settings.machine).__name__} is a memory, not a model that reads the whole stream.")
    embed = build_embedding(settings, codec)
    reader = StreamReader(item_dim=settings.item_dim, model_dim=settings.model_dim)
    query_encoder = build_query_encoder(settings, codec, embed)
    if settings.machine.attention:
        return MultiHopReason(
            embed=embed,
            reader=reader,
            query_encoder=query_encoder,
            reasoner=_reasoner(settings, settings.model_dim),
            head=build_head(settings, codec, settings.model_dim, query_encoder),
        )
    head = build_head(settings, codec, 2 * settings.model_dim, query_encoder)
    return DirectlyReason(embed=embed, reader=reader, query_encoder=query_encoder, head=head)


def build_click(settings: ModelSettings, codec: Codec) -> ClickModel:
    """A model of a click that reads the whole history; its targets are items."""
    _refuse_rehearsal(settings)
    machine, item_dim = settings.machine, settings.item_dim
    if not isinstance(codec, ClickCodec):
        raise BadInput(
            f"{type(machine).__name__} is for clicks, where a question is an item; this task asks otherwise. "
            "Take one of the methods that answer any question, such as multi-hop-reason."
        )
    readers: dict[type, type[nn.Module]] = {
        GRU4RecSettings: GRU4Rec, CaserSettings: Caser, RUMSettings: RUM, DIENSettings: DIEN,
    }  # fmt: skip
    if not isinstance(machine, ClickSettings):
        raise BadInput(f"{type(machine).__name__} is no model of clicks that reads the whole history.")
    reader = readers[type(machine)](item_dim=item_dim, **_fields(machine))
    return ClickModel(embed=item_embedding(settings, codec.num_items), reader=reader)


def _refuse_rehearsal(settings: ModelSettings) -> None:
    if settings.rehearsal.beside_answers:
        raise BadInput(
            "A model that reads the whole stream has no memory to rehearse from; give rehearsal weights of 0."
        )


def build_question_answerer(settings: ModelSettings, codec: Codec) -> ASReader | E2EMN | VideoModel | Blind:
    """The directly reasoning methods of text and video QA, and the one that reads nothing."""
    _refuse_rehearsal(settings)
    machine, model_dim = settings.machine, settings.model_dim
    if isinstance(machine, ASReaderSettings | E2EMNSettings):
        if not isinstance(codec, PassageCodec):
            raise BadInput("AS Reader and E2E-MN choose among candidates made of the text's words; this task has none.")
        sizes: dict[str, int] = {"num_words": codec.num_items, "model_dim": model_dim}
        if isinstance(machine, E2EMNSettings):
            return E2EMN(**sizes, **_fields(machine))
        return ASReader(**sizes, word_dim=settings.item_dim, **_fields(machine))
    embed = build_embedding(settings, codec)
    query_encoder = build_query_encoder(settings, codec, embed)
    head = build_head(settings, codec, model_dim, query_encoder)
    ends: dict[str, Any] = {"query_encoder": query_encoder, "head": head, "model_dim": model_dim}
    if isinstance(machine, BlindSettings):
        return Blind(**ends, **_fields(machine))
    ends |= {"embed": embed, "item_dim": settings.item_dim}
    match machine:
        case EVQASettings():
            return EVQA(**ends, **_fields(machine))
        case EMNSettings():
            return EMN(**ends, **_fields(machine))
        case ESASettings():
            return ESA(**ends, **_fields(machine))
        case HCRNSettings():
            return HCRN(**ends, **_fields(machine))
    raise BadInput(f"{type(machine).__name__} is no method of text or video QA.")


def build_native(settings: ModelSettings, codec: Codec) -> NativeWordModel | NativeSTM:
    """A method as its authors ran it, from the words to the answer."""
    machine, item_dim = settings.machine, settings.item_dim
    if settings.rehearsal.beside_answers:
        raise BadInput("A method in its native form has no decoder to rehearse with; give rehearsal weights of 0.")
    if not isinstance(codec, TextCodec):
        raise BadInput(
            "A method in its native form reads stories and questions as words of one vocabulary; this task asks by "
            "number. Take the method's form for the shared harness, without -native."
        )
    embed, answers = item_embedding(settings, codec.num_items), codec.num_answers
    match machine:
        case NativeWordSettings():
            memory: Any = build_memorizer(dataclasses.replace(settings, machine=machine.memory), codec)
            return NativeWordModel(
                embed=embed, memory=memory, num_answers=answers, bypass_dropout=machine.bypass_dropout
            )
        case NativeSTMSettings():
            sizes = _fields(machine)
            two = TwoMemories(item_dim=item_dim, segment_len=codec.segment_len, bounded_after=None, **sizes)
            reader = AssociativeReader(item_dim=item_dim, num_answers=answers, **sizes)
            return NativeSTM(embed=embed, memory=two, reader=reader)
    raise BadInput(f"{type(machine).__name__} has no native form.")


def build_memorizer(settings: ModelSettings, codec: Codec) -> nn.Module:
    """The memory of any method."""
    machine, item_dim = settings.machine, settings.item_dim
    match machine:
        case MachineSettings():
            return build_machine(settings, codec.segment_len)
        case DeltaSettings():
            return DeltaMachine(item_dim=item_dim, **_fields(machine))
        case DNCSettings():
            return DNC(item_dim=item_dim, **_fields(machine))
        case NUTMSettings():
            return NUTM(item_dim=item_dim, **_fields(machine))
        case DMSDNCSettings():
            named = codec.num_items if codec.num_items and codec.num_items <= MOST_NAMED else None
            return DMSDNC(item_dim=item_dim, num_items=named, **_fields(machine))
        case STMSettings():
            width = machine.width or matched_width(machine.num_slots, item_dim, machine.num_queries)
            return STM(item_dim=item_dim, segment_len=codec.segment_len, **_fields(machine) | {"width": width})
        case CompressiveTransformerSettings():
            return CompressiveTransformer(item_dim=item_dim, segment_len=codec.segment_len, **_fields(machine))
        case HPMNSettings():
            return HPMN(item_dim=item_dim, **_fields(machine))
        case MIMNSettings():
            return MIMN(item_dim=item_dim, **_fields(machine))
        case NativeWordSettings() | NativeSTMSettings():
            raise BadInput("A method in its native form answers by itself; it has no memory for another reader.")
        case _:
            raise BadInput("A model that reads the whole stream has no memory of its own.")


def _fields(settings: DeltaSettings | BaselineSettings) -> dict[str, Any]:
    """A method's settings carry the names of its constructor's arguments."""
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}


def build_machine(settings: ModelSettings, segment_len: int) -> MemoryMachine | TurnMachine | RecentMachine:
    """The rehearsal memory machine G."""
    machine = settings.machine
    if not isinstance(machine, MachineSettings):
        raise BadInput(f"{type(machine).__name__} describes another method than rehearsal memory.")
    if machine.turns < 0:
        raise BadInput(f"Slots can't take turns of {machine.turns} segments; give 1 or more, or 0 for no turns.")
    if not 0 <= machine.recent < machine.num_slots:
        raise BadInput(
            f"Of {machine.num_slots} slots {machine.recent} can't be the last segments; give 0 to "
            f"{machine.num_slots - 1}, or more slots, so that one is left for what is older."
        )
    if machine.turns and machine.recent:
        raise BadInput("Slots take turns or stand beside the last segments, not both; set turns or recent to 0.")
    encoder = (
        TransformerEncoder(
            position=_position(settings.embedding, segment_len, settings.item_dim),
            item_dim=settings.item_dim,
            num_layers=machine.encoder_layers,
            num_heads=machine.num_heads,
            dropout=machine.dropout,
            pre_norm=settings.pre_norm,
        )
        if machine.encoder == "transformer"
        else GRUEncoder(item_dim=settings.item_dim)
    )
    writer = SlotWriter(
        item_dim=settings.item_dim,
        model_dim=settings.model_dim,
        num_slots=machine.num_slots - machine.recent,
        aligned_gain=machine.aligned_gain,
        score_gain=machine.write_score_gain,
        keep_bias=machine.keep_bias,
        keep_spread=machine.keep_spread,
        copy_start=machine.copy_start,
        slot_identity=machine.slot_identity,
    )
    parts: dict[str, Any] = {
        "encoder": encoder, "writer": writer, "num_slots": machine.num_slots, "item_dim": settings.item_dim,
        "weigh_items": machine.weigh_items,
    }  # fmt: skip
    if machine.recent:
        return RecentMachine(
            recent=machine.recent, segment_len=segment_len, place_std=settings.embedding.position_std, **parts
        )
    return TurnMachine(turns=machine.turns, **parts) if machine.turns else MemoryMachine(**parts)


def build_sampler(settings: ModelSettings, codec: Codec) -> HistorySampler:
    """The history sampler S, with an embedding and a query encoder of its own."""
    embed = build_embedding(settings, codec)
    apart = replace(settings, reasoner=replace(settings.reasoner, tie_query_words=False))
    query_encoder = build_query_encoder(apart, codec, embed)
    return HistorySampler(
        embed=embed,
        query_encoder=query_encoder,
        item_dim=settings.item_dim,
        model_dim=settings.model_dim,
        head=build_head(settings, codec, settings.item_dim + settings.model_dim, query_encoder),
    )


def _reasoner(settings: ModelSettings, row_dim: int) -> MultiHopReasoner:
    if settings.reasoner.match_rows and not settings.reasoner.slot_layers:
        raise BadInput(
            "--model.reasoner.match-rows says where rows look in the slot layers, and there are none. Give "
            "--model.reasoner.slot-layers 3, or leave it False."
        )
    return MultiHopReasoner(
        item_dim=row_dim,
        model_dim=settings.model_dim,
        num_hops=settings.reasoner.num_hops,
        score_gain=settings.reasoner.read_score_gain,
        read_norm=settings.reasoner.read_norm,
        thinking_layers=settings.reasoner.thinking_layers,
        compare=settings.reasoner.compare,
        slot_layers=settings.reasoner.slot_layers,
        slot_heads=settings.reasoner.slot_heads,
        match_rows=settings.reasoner.match_rows,
        dropout=settings.reasoner.dropout,
    )


def _decoder(settings: ModelSettings, segment_len: int) -> RehearsalDecoder:
    rehearsal = settings.rehearsal
    return RehearsalDecoder(
        position=_position(settings.embedding, 1 + segment_len, settings.item_dim),
        item_dim=settings.item_dim,
        num_layers=rehearsal.decoder_layers,
        num_heads=rehearsal.num_heads,
        dropout=rehearsal.dropout,
        pre_norm=settings.pre_norm,
        scaled_recall=rehearsal.scaled_recall,
        read_norm=rehearsal.read_norm,
    )


def _position(embedding: EmbeddingSettings, length: int, dim: int) -> PositionCode:
    return PositionCode(length=length, dim=dim, kind=embedding.position, std=embedding.position_std)
