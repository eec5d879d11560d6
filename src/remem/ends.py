"""Both ends of every model, which depend on the task alone: what makes vectors of items and questions, and answers."""

from __future__ import annotations

from remem.data.codec import AnswerKind, ClickCodec, Codec, FrameCodec, IdCodec, PassageCodec, TextCodec
from remem.errors import BadInput
from remem.model.embed import (
    Embedding,
    IdQueryEncoder,
    ItemEmbedding,
    PlacedSum,
    QueryEncoder,
    SentenceQueryEncoder,
    TargetQueryEncoder,
    VectorEmbedding,
)
from remem.model.heads import CandidateHead, ClassHead, ClickHead, Head
from remem.settings.model import ModelSettings

PLACES = 32  # of a question whose words are added up: those beyond count as the last of these


def build_embedding(settings: ModelSettings, codec: Codec) -> Embedding:
    """What makes x of an item: a table where items are numbers, a projection where they are vectors."""
    if isinstance(codec, FrameCodec):
        return VectorEmbedding(width=codec.width, item_dim=settings.item_dim)
    return item_embedding(settings, codec.num_items)


def item_embedding(settings: ModelSettings, num_items: int) -> ItemEmbedding:
    """A table of items of the model's width."""
    return ItemEmbedding(num_items=num_items, item_dim=settings.item_dim, std=settings.embedding.item_std)


def build_query_encoder(settings: ModelSettings, codec: Codec, embed: Embedding) -> QueryEncoder:
    """What makes q of a question. A target item always shares the items' embedding, words do if the settings say so."""
    if settings.reasoner.question == "sum" and isinstance(codec, IdCodec | ClickCodec):
        raise BadInput(
            "--model.reasoner.question sum adds up words, and this task's questions have none; leave it gru."
        )
    match codec:
        case IdCodec():
            return IdQueryEncoder(num_queries=codec.num_queries, model_dim=settings.model_dim)
        case ClickCodec():
            assert isinstance(embed, ItemEmbedding)
            return TargetQueryEncoder(
                items=embed.table, model_dim=settings.model_dim, copy_start=settings.reasoner.compare
            )
        case TextCodec() | PassageCodec() | FrameCodec():
            tied = settings.reasoner.tie_query_words and isinstance(embed, ItemEmbedding)
            words = embed if tied else item_embedding(settings, codec.num_queries)
            assert isinstance(words, ItemEmbedding)
            return SentenceQueryEncoder(words=words.table, model_dim=settings.model_dim, summed=_summed(settings))


def _summed(settings: ModelSettings) -> PlacedSum | None:
    if settings.reasoner.question == "gru":
        return None
    if settings.item_dim != settings.model_dim:
        raise BadInput(
            f"A question that is the sum of its words is as wide as they are: {settings.item_dim}, not "
            f"{settings.model_dim}. Give --model.model-dim {settings.item_dim}, or --model.reasoner.question gru."
        )
    return PlacedSum(places=PLACES, dim=settings.item_dim, std=settings.embedding.position_std)


def build_head(settings: ModelSettings, codec: Codec, width: int, query_encoder: QueryEncoder) -> Head:
    """The last layer of any method, over a reason of `width` numbers; candidates are read with the questions' words."""
    if codec.answer_kind == AnswerKind.CLICK:
        return ClickHead(model_dim=width)
    if codec.answer_kind == AnswerKind.CANDIDATES:
        assert isinstance(query_encoder, SentenceQueryEncoder)
        encoder = SentenceQueryEncoder(words=query_encoder.words, model_dim=settings.model_dim)
        return CandidateHead(
            candidate_encoder=encoder, model_dim=width, candidate_dim=settings.model_dim,
            match=settings.reasoner.match_candidates,
        )  # fmt: skip
    assert not isinstance(codec, PassageCodec | ClickCodec)
    return ClassHead(model_dim=width, num_answers=codec.num_answers)
