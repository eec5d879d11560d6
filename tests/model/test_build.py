from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from builders import CODEC, PAPER, RM, TEXT_CODEC, assert_close, make_model, with_encoder
from torch import nn

from remem.build import build_memory_model, build_model, build_sampler
from remem.data.codec import ClickCodec, PassageCodec
from remem.errors import BadInput
from remem.model.attention import AdditiveScore
from remem.model.embed import IdQueryEncoder, SentenceQueryEncoder
from remem.model.encoder import GRUEncoder, TransformerEncoder
from remem.model.heads import CandidateHead
from remem.settings.model import MachineSettings, ModelSettings, ReasonerSettings, with_machine, without_rehearsal


def test_the_papers_settings_build_the_papers_sizes() -> None:
    model = build_model(ModelSettings(), CODEC)
    assert model.memorizer.first_slots.shape == (20, 128)
    assert isinstance(model.memorizer.encoder, TransformerEncoder)
    assert len(model.memorizer.encoder.layers) == 3
    assert model.decoder is not None
    assert len(model.decoder.layers) == 3
    assert len(model.reasoner.hops) == 2


def test_the_papers_settings_build_none_of_our_departures() -> None:
    model = make_model(PAPER)
    assert model.memorizer.writer.identity is None
    assert model.memorizer.writer.aligned_gain == 1.0
    assert isinstance(model.reasoner.norm, nn.Identity)
    assert isinstance(model.memorizer.encoder, TransformerEncoder)
    assert isinstance(model.memorizer.encoder.norm, nn.Identity)
    assert model.decoder is not None
    assert isinstance(model.decoder.norm, nn.Identity)
    assert model.decoder.recall_scale == 1.0
    assert "memorizer.encoder.position.table" not in dict(model.named_parameters())


def test_the_improved_settings_build_all_of_them() -> None:
    model = make_model(RM)
    assert model.memorizer.writer.identity is not None
    assert model.memorizer.writer.aligned_gain == 5.0
    assert isinstance(model.reasoner.norm, nn.LayerNorm)
    assert isinstance(model.memorizer.encoder, TransformerEncoder)
    assert isinstance(model.memorizer.encoder.norm, nn.LayerNorm)
    assert model.decoder is not None
    assert isinstance(model.decoder.norm, nn.LayerNorm)
    assert model.decoder.recall_scale < 1.0
    assert "memorizer.encoder.position.table" in dict(model.named_parameters())


@pytest.mark.parametrize("part", ["write", "read"])
def test_a_score_gain_multiplies_the_first_weights_of_its_attention(part: str) -> None:
    weights = []
    for gain in (1.0, 4.0):
        torch.manual_seed(2)
        model = make_model(
            replace(PAPER, machine=replace(PAPER.machine, write_score_gain=gain))
            if part == "write"
            else replace(PAPER, reasoner=replace(PAPER.reasoner, read_score_gain=gain))
        )
        attention = model.memorizer.writer.attention if part == "write" else model.reasoner.hops[0]
        assert isinstance(attention, AdditiveScore)
        weights.append(attention.score.weight)
    assert torch.equal(weights[1], 4.0 * weights[0])


def test_a_keep_bias_reaches_the_writers_cell() -> None:
    biases = []
    for keep_bias in (0.0, 2.0):
        torch.manual_seed(2)
        machine = replace(PAPER.machine, keep_bias=keep_bias)
        biases.append(make_model(replace(PAPER, machine=machine)).memorizer.writer.cell.bias_hh.detach())
    d = PAPER.item_dim
    assert_close(biases[1] - biases[0], [0.0] * d + [2.0] * d + [0.0] * d)


def test_a_keep_spread_raises_the_bias_evenly_over_a_slots_numbers() -> None:
    biases = []
    for keep_spread in (0.0, 6.0):
        torch.manual_seed(2)
        machine = replace(PAPER.machine, keep_bias=1.0, keep_spread=keep_spread)
        biases.append(make_model(replace(PAPER, machine=machine)).memorizer.writer.cell.bias_hh.detach())
    d = PAPER.item_dim
    rising = [6.0 * number / (d - 1) for number in range(d)]
    assert_close(biases[1] - biases[0], [0.0] * d + rising + [0.0] * d)


def test_the_encoder_is_the_one_asked_for() -> None:
    assert isinstance(make_model(with_encoder(RM, "gru")).memorizer.encoder, GRUEncoder)
    assert isinstance(make_model(RM).memorizer.encoder, TransformerEncoder)


def test_without_rehearsal_there_is_no_decoder() -> None:
    assert make_model(without_rehearsal(RM)).decoder is None


def test_the_decoder_has_a_position_for_cls_and_every_item() -> None:
    decoder = make_model(RM).decoder
    assert decoder is not None
    assert len(decoder.position.table) == 1 + CODEC.segment_len


def test_queries_are_ids_or_sentences_as_the_codec_says() -> None:
    assert isinstance(make_model(RM, CODEC).query_encoder, IdQueryEncoder)
    assert isinstance(make_model(RM, TEXT_CODEC).query_encoder, SentenceQueryEncoder)


@pytest.mark.parametrize("tied", [False, True])
def test_questions_share_the_items_words_only_where_asked(tied: bool) -> None:
    model = make_model(replace(RM, reasoner=replace(RM.reasoner, tie_query_words=tied)), TEXT_CODEC)
    assert isinstance(model.query_encoder, SentenceQueryEncoder)
    assert (model.query_encoder.words is model.embed.table) == tied


def test_a_question_that_is_a_sum_of_words_is_as_wide_as_they_are() -> None:
    summed = replace(RM, model_dim=RM.item_dim, reasoner=replace(RM.reasoner, question="sum"))
    encoder = make_model(summed, TEXT_CODEC).query_encoder
    assert isinstance(encoder, SentenceQueryEncoder)
    assert not any("gru" in name for name, _ in encoder.named_parameters())
    with pytest.raises(BadInput, match="this task's questions have none"):
        make_model(summed, CODEC)
    with pytest.raises(BadInput, match=rf"as wide as they are: {RM.item_dim}, not {RM.item_dim + 2}\. Give --model"):
        make_model(replace(summed, model_dim=RM.item_dim + 2), TEXT_CODEC)


def test_rows_that_match_without_slot_layers_are_refused() -> None:
    with pytest.raises(BadInput, match="there are none"):
        make_model(replace(RM, reasoner=replace(RM.reasoner, match_rows=True)), CODEC)


@pytest.mark.parametrize("tied", [False, True])
def test_candidates_are_read_by_a_network_of_their_own_in_the_questions_words(tied: bool) -> None:
    settings = replace(RM, reasoner=replace(RM.reasoner, tie_query_words=tied))
    model = build_memory_model(settings, PassageCodec(segment_len=4, words=[f"word{i}" for i in range(12)]))
    assert isinstance(model.head, CandidateHead)
    assert isinstance(model.query_encoder, SentenceQueryEncoder)
    assert model.head.candidate_encoder.gru is not model.query_encoder.gru
    assert model.head.candidate_encoder.words is model.query_encoder.words


def test_the_sampler_shares_nothing_with_the_model() -> None:
    model, sampler = make_model(RM, TEXT_CODEC), build_sampler(RM, TEXT_CODEC)
    assert not {id(p) for p in model.parameters()} & {id(p) for p in sampler.parameters()}


def test_a_width_that_heads_cannot_share_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadInput, match="choose a divisor"):
        make_model(replace(PAPER, item_dim=9))


def test_a_reasoner_that_compares_starts_with_the_target_as_it_is() -> None:
    codec = ClickCodec(segment_len=5, num_items=9)
    comparing = replace(PAPER, reasoner=replace(PAPER.reasoner, thinking_layers=True, compare=True))
    model = build_memory_model(replace(comparing, item_dim=8, model_dim=8), codec)
    tokens = torch.tensor([[3], [7]])
    assert torch.equal(model.query_encoder(tokens, tokens > 0), model.embed(tokens[:, 0]))


def drops(part: nn.Module) -> bool:
    return any(layer.p > 0 for layer in part.modules() if isinstance(layer, nn.Dropout))


def promised(section: type, field: str) -> str:
    """The help of a setting up to its first semicolon: what is said after that are exceptions."""
    return inspect.getsource(section).split(f"    {field}: ")[1].split('"""')[1].split(";")[0]


@pytest.mark.parametrize(("layers", "name"), [({"thinking_layers": True}, "thinking"), ({"slot_layers": 1}, "slot")])
def test_the_reasoners_dropout_acts_in_the_layers_that_its_help_names(layers: dict[str, Any], name: str) -> None:
    reasoner = replace(RM.reasoner, dropout=0.5, slot_heads=2, **layers)
    assert drops(make_model(replace(RM, reasoner=reasoner)).reasoner) == (name in promised(ReasonerSettings, "dropout"))


@pytest.mark.parametrize("kind", ["transformer", "gru"])
def test_the_encoders_dropout_is_that_of_a_transformer_as_its_help_says(kind: Literal["transformer", "gru"]) -> None:
    encoder = make_model(with_encoder(with_machine(RM, dropout=0.5), kind)).memorizer.encoder
    assert drops(encoder) == (kind in promised(MachineSettings, "dropout").lower())
