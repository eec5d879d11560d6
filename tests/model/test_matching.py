"""Candidates found by the words that they share with slots and question."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import RM, TEXT_CODEC, assert_close
from torch import Tensor, nn
from torch.nn import functional as F

from remem.build import build_memory_model
from remem.data.batch import Candidates
from remem.data.codec import PassageCodec
from remem.errors import BadInput
from remem.model.matching import WordMatch

D, WORDS = 64, 40
CODEC = PassageCodec(segment_len=4, words=[f"word{i}" for i in range(12)])


def word_match() -> WordMatch:
    torch.manual_seed(0)
    return WordMatch(words=nn.Embedding(WORDS, D))


def holding(match: WordMatch, *slots: list[int]) -> Tensor:
    """A memory for one question, whose slots are sums of words."""
    return torch.stack([match.words.weight[slot].sum(dim=0) for slot in slots])[None, None].detach()


def asked(*words: int) -> tuple[Tensor, Tensor]:
    tokens = torch.tensor([[words]])
    return tokens, torch.ones_like(tokens, dtype=torch.bool)


def choices(*words: int) -> Candidates:
    tokens = torch.tensor(words)[None, :, None]
    return Candidates(tokens, torch.ones_like(tokens, dtype=torch.bool))


MEMORY = ([1, 2, 3], [4, 5, 6], [7, 8, 9])


@pytest.mark.parametrize(("question", "answer"), [((1, 2), 0), ((4, 6), 1), ((8,), 2)])
def test_the_word_beside_those_asked_for_is_found_before_anything_is_learned(question: tuple[int], answer: int) -> None:
    match = word_match()
    scores = match(holding(match, *MEMORY), *asked(*question), choices(3, 5, 9))
    assert scores.shape == (1, 1, 3)
    assert int(scores.argmax()) == answer


def test_a_candidate_that_repeats_the_question_is_no_answer() -> None:
    match = word_match()
    memory = holding(match, *MEMORY)
    scores = match(memory, *asked(1, 2), choices(1, 3))[0, 0]
    match.repeated.data.fill_(50.0)
    assert match(memory, *asked(1, 2), choices(1, 3))[0, 0, 0] < scores[0] - 10
    assert int(match(memory, *asked(1, 2), choices(1, 3)).argmax()) == 1


def test_what_all_slots_share_says_nothing() -> None:
    match = word_match()
    memory, rest = holding(match, *MEMORY), (*asked(1, 2), choices(3, 5, 9))
    assert_close(match(memory + 3 * match.words.weight[5].detach(), *rest), match(memory, *rest))


def test_padding_in_question_and_candidates_changes_nothing() -> None:
    match = word_match()
    memory = holding(match, *MEMORY)
    tokens, mask = asked(1, 2)
    candidates = choices(3, 5)
    longer = torch.cat([tokens, torch.tensor([[[7]]])], dim=-1), torch.cat([mask, torch.zeros_like(mask[..., :1])], -1)
    wider = Candidates(
        torch.cat([candidates.tokens, torch.full_like(candidates.tokens, 9)], dim=-1),
        torch.cat([candidates.token_mask, torch.zeros_like(candidates.token_mask)], dim=-1),
    )
    assert_close(match(memory, *longer, wider), match(memory, tokens, mask, candidates))


def test_words_are_weighed_by_what_is_learned() -> None:
    match = word_match()
    memory, rest = holding(match, *MEMORY), (*asked(1, 4), choices(3, 5))
    for word, answer in ((1, 0), (4, 1)):
        match.asked_weight.weight.data.fill_(-1.0)
        match.asked_weight.weight.data[word] = 0.1
        assert int(match(memory, *rest).argmax()) == answer


def test_a_model_adds_the_match_to_the_scores_of_one_question_and_of_many() -> None:
    reasoner = replace(RM.reasoner, match_words=True, tie_query_words=True)
    model = build_memory_model(replace(RM, reasoner=reasoner), CODEC).eval()
    plain = build_memory_model(replace(RM, reasoner=replace(reasoner, match_words=False)), CODEC).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("match.")})
    memory, candidates = torch.randn(2, 3, RM.item_dim), Candidates(*(each.repeat(2, 1, 1) for each in choices(3, 5)))
    tokens, mask = (each[0].repeat(2, 1) for each in asked(1, 2))
    with torch.no_grad():
        scores = model.answer(memory, tokens, mask, candidates).scores
        assert model.match is not None
        added = model.match(memory[:, None], tokens[:, None], mask[:, None], candidates)[:, 0]
        assert_close(scores, plain.answer(memory, tokens, mask, candidates).scores + added)
    assert added.abs().max() > 1e-3


def test_a_task_without_such_candidates_refuses_it() -> None:
    settings = replace(RM, reasoner=replace(RM.reasoner, match_words=True))
    with pytest.raises(BadInput, match=r"match-words compares the words of candidates.*Leave it False"):
        build_memory_model(settings, TEXT_CODEC)


def test_a_match_starts_as_strong_as_it_is_set() -> None:
    def scale(strength: float) -> torch.Tensor:
        reasoner = replace(RM.reasoner, match_words=True, tie_query_words=True, match_strength=strength)
        match = build_memory_model(replace(RM, reasoner=reasoner), CODEC).match
        assert isinstance(match, WordMatch)
        match.repeated.data.zero_()
        return match(holding(match, *MEMORY), *asked(1, 2), choices(3, 5)).detach()

    torch.manual_seed(0)
    weak = scale(1.5)
    torch.manual_seed(0)
    assert_close(scale(2.5), torch.e * weak)


def test_rare_words_outweigh_frequent_ones_from_the_start_where_that_is_set() -> None:
    reasoner = replace(RM.reasoner, match_words=True, tie_query_words=True, match_rare_first=True)
    match = build_memory_model(replace(RM, reasoner=reasoner), CODEC).match
    assert isinstance(match, WordMatch)
    ids = torch.arange(CODEC.num_items)
    each = F.softplus(20 * match.asked_weight(ids)[:, 0])
    assert_close(each[1:], 2 * (1 + ids[1:]).log() / torch.tensor(1.0 + CODEC.num_items).log())
    assert 0 < each[0] < each[1] / 2  # the unknown word, which may be any
    # the question's frequent word stands in one slot, its rare one in the other: the rare one's neighbour is the answer
    match.words.weight.data.copy_(torch.eye(*match.words.weight.shape))
    scores = match(holding(match, [1, 2, 3], [5, 6, 7]), *asked(1, 6), choices(3, 7))
    assert int(scores.argmax()) == 1
