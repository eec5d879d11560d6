"""From settings to modules: the one place that sees both."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from remem.baselines.compressive_transformer import CompressiveTransformer
from remem.baselines.directly_reason import DirectlyReason, StreamReader
from remem.baselines.dmsdnc import DMSDNC
from remem.baselines.dnc import DNC
from remem.baselines.hpmn import HPMN
from remem.baselines.mimn import MIMN
from remem.baselines.multi_hop_reason import MultiHopReason
from remem.baselines.native import NativeWordModel
from remem.baselines.native_stm import AssociativeReader, NativeSTM
from remem.baselines.nutm import NUTM
from remem.baselines.stm import STM, TwoMemories, matched_width
from remem.data.codec import Codec, TextCodec
from remem.errors import BadInput
from remem.model.assembly import MemoryModel
from remem.model.embed import IdQueryEncoder, ItemEmbedding, SentenceQueryEncoder
from remem.model.encoder import GRUEncoder, TransformerEncoder
from remem.model.heads import ClassHead
from remem.model.machine import MemoryMachine
from remem.model.reasoner import MultiHopReasoner
from remem.model.rehearsal import RehearsalDecoder
from remem.model.sampler import HistorySampler
from remem.model.transformer import PositionCode
from remem.model.writer import SlotWriter
from remem.settings.baselines import (
    BaselineSettings,
    CompressiveTransformerSettings,
    DirectSettings,
    DMSDNCSettings,
    DNCSettings,
    HPMNSettings,
    MIMNSettings,
    NativeSTMSettings,
    NativeWordSettings,
    NUTMSettings,
    STMSettings,
)
from remem.settings.model import EmbeddingSettings, MachineSettings, ModelSettings

Model = MemoryModel | DirectlyReason | MultiHopReason | NativeWordModel | NativeSTM


def build_model(settings: ModelSettings, codec: Codec) -> Model:
    """The model of any method for a task's codec."""
    if isinstance(settings.machine, DirectSettings):
        return build_direct(settings, codec)
    if isinstance(settings.machine, NativeWordSettings | NativeSTMSettings):
        return build_native(settings, codec)
    return build_memory_model(settings, codec)


def build_memory_model(settings: ModelSettings, codec: Codec) -> MemoryModel:
    """Embedding, memory, reasoner and head, with a decoder if anything is rehearsed."""
    embed = _embedding(settings, codec)
    return MemoryModel(
        embed=embed,
        memorizer=build_memorizer(settings, codec),
        query_encoder=_query_encoder(settings, codec, embed if settings.reasoner.tie_query_words else None),
        reasoner=_reasoner(settings, settings.item_dim),
        head=ClassHead(model_dim=settings.model_dim, num_answers=codec.num_answers),
        decoder=_decoder(settings, codec.segment_len) if settings.rehearsal.enabled else None,
    )


def build_direct(settings: ModelSettings, codec: Codec) -> DirectlyReason | MultiHopReason:
    """A model that reads the whole stream; it has no memory, so there is nothing to rehearse from."""
    if settings.rehearsal.enabled:
        raise BadInput(
            "A model that reads the whole stream has no memory to rehearse from; give rehearsal weights of 0."
        )
    if not isinstance(settings.machine, DirectSettings):
        raise BadInput(f"{type(settings.machine).__name__} is a memory, not a model that reads the whole stream.")
    embed = _embedding(settings, codec)
    reader = StreamReader(item_dim=settings.item_dim, model_dim=settings.model_dim)
    query_encoder = _query_encoder(settings, codec, embed if settings.reasoner.tie_query_words else None)
    if settings.machine.attention:
        return MultiHopReason(
            embed=embed,
            reader=reader,
            query_encoder=query_encoder,
            reasoner=_reasoner(settings, settings.model_dim),
            head=ClassHead(model_dim=settings.model_dim, num_answers=codec.num_answers),
        )
    head = ClassHead(model_dim=2 * settings.model_dim, num_answers=codec.num_answers)
    return DirectlyReason(embed=embed, reader=reader, query_encoder=query_encoder, head=head)


def build_native(settings: ModelSettings, codec: Codec) -> NativeWordModel | NativeSTM:
    """A method as its authors ran it, from the words to the answer."""
    machine, item_dim = settings.machine, settings.item_dim
    if settings.rehearsal.enabled:
        raise BadInput("A method in its native form has no decoder to rehearse with; give rehearsal weights of 0.")
    if not isinstance(codec, TextCodec):
        raise BadInput(
            "A method in its native form reads stories and questions as words of one vocabulary; this task asks by "
            "number. Take the method's form for the shared harness, without -native."
        )
    embed, answers = _embedding(settings, codec), codec.num_answers
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
        case DNCSettings():
            return DNC(item_dim=item_dim, **_fields(machine))
        case NUTMSettings():
            return NUTM(item_dim=item_dim, **_fields(machine))
        case DMSDNCSettings():
            return DMSDNC(item_dim=item_dim, num_items=codec.num_items, **_fields(machine))
        case STMSettings():
            width = machine.width or matched_width(machine.num_slots, item_dim, machine.num_queries)
            return STM(item_dim=item_dim, segment_len=codec.segment_len, **_fields(machine) | {"width": width})
        case CompressiveTransformerSettings():
            return CompressiveTransformer(item_dim=item_dim, segment_len=codec.segment_len, **_fields(machine))
        case HPMNSettings():
            return HPMN(item_dim=item_dim, **_fields(machine))
        case MIMNSettings():
            return MIMN(item_dim=item_dim, **_fields(machine))
        case DirectSettings():
            raise BadInput("A model that reads the whole stream has no memory of its own.")
        case NativeWordSettings() | NativeSTMSettings():
            raise BadInput("A method in its native form answers by itself; it has no memory for another reader.")


def _fields(settings: BaselineSettings) -> dict[str, Any]:
    """A baseline's settings carry the names of its constructor's arguments."""
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}


def build_machine(settings: ModelSettings, segment_len: int) -> MemoryMachine:
    """The rehearsal memory machine G."""
    machine = settings.machine
    if not isinstance(machine, MachineSettings):
        raise BadInput(f"{type(machine).__name__} describes another method than rehearsal memory.")
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
        num_slots=machine.num_slots,
        aligned_gain=machine.aligned_gain,
        score_gain=machine.write_score_gain,
        keep_bias=machine.keep_bias,
        slot_identity=machine.slot_identity,
    )
    return MemoryMachine(encoder=encoder, writer=writer, num_slots=machine.num_slots, item_dim=settings.item_dim)


def build_sampler(settings: ModelSettings, codec: Codec) -> HistorySampler:
    """The history sampler S, with an embedding and a query encoder of its own."""
    return HistorySampler(
        embed=_embedding(settings, codec),
        query_encoder=_query_encoder(settings, codec, None),
        item_dim=settings.item_dim,
        model_dim=settings.model_dim,
        num_answers=codec.num_answers,
    )


def _embedding(settings: ModelSettings, codec: Codec) -> ItemEmbedding:
    return ItemEmbedding(num_items=codec.num_items, item_dim=settings.item_dim, std=settings.embedding.item_std)


def _reasoner(settings: ModelSettings, row_dim: int) -> MultiHopReasoner:
    return MultiHopReasoner(
        item_dim=row_dim,
        model_dim=settings.model_dim,
        num_hops=settings.reasoner.num_hops,
        score_gain=settings.reasoner.read_score_gain,
        read_norm=settings.reasoner.read_norm,
        thinking_layers=settings.reasoner.thinking_layers,
    )


def _query_encoder(
    settings: ModelSettings, codec: Codec, shared: ItemEmbedding | None
) -> IdQueryEncoder | SentenceQueryEncoder:
    if codec.kind == "ids":
        return IdQueryEncoder(num_queries=codec.num_queries, model_dim=settings.model_dim)
    words = shared or ItemEmbedding(
        num_items=codec.num_queries, item_dim=settings.item_dim, std=settings.embedding.item_std
    )
    return SentenceQueryEncoder(words=words.table, model_dim=settings.model_dim)


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
