from __future__ import annotations

import pytest
import torch
from builders import additive_score, assert_close, dot
from torch import nn

from remem.data.batch import Candidates
from remem.errors import BadInput
from remem.model.embed import SentenceQueryEncoder
from remem.model.heads import CandidateHead, ClassHead, ClickHead


def candidate_head(*, match: bool = False) -> CandidateHead:
    """Reasons of width 6, candidates of width 4."""
    encoder = SentenceQueryEncoder(words=nn.Embedding(9, 5), model_dim=4)
    return CandidateHead(candidate_encoder=encoder, model_dim=6, candidate_dim=4, match=match)


def three_and_two() -> Candidates:
    """Three candidates of the first stream, two of the second."""
    lengths = torch.tensor([[3, 1, 2], [2, 3, 0]])
    return Candidates(torch.randint(9, (2, 3, 3)), torch.arange(3) < lengths[..., None])


def test_the_class_head_scores_every_answer_linearly() -> None:
    head = ClassHead(model_dim=4, num_answers=6)
    reason = torch.randn(2, 3, 4)
    scores = head(reason)
    assert scores.shape == (2, 3, 6)
    for b in range(2):
        for q in range(3):
            for c in range(6):
                expected = dot(head.classify.weight[c].tolist(), reason[b, q].tolist()) + head.classify.bias[c].item()
                assert_close(scores[b, q, c], expected)


@pytest.mark.parametrize("match", [False, True])
def test_the_candidate_head_scores_each_sentence_against_each_reason(match: bool) -> None:
    head, reason, candidates = candidate_head(match=match), torch.randn(2, 2, 6), three_and_two()
    scores = head(reason, candidates)
    assert scores.shape == (2, 2, 3)
    for b, c in candidates.token_mask.any(dim=-1).nonzero().tolist():
        sentence = candidates.tokens[b, c][candidates.token_mask[b, c]][None]
        feature = head.candidate_encoder(sentence, torch.ones_like(sentence, dtype=torch.bool))[0]
        for q in range(2):
            expected = additive_score(head.score, reason[b, q].tolist(), feature.tolist())
            if match:
                expected += dot(head.score.left(reason[b, q]).tolist(), feature.tolist()) / 2  # sqrt(4)
            assert_close(scores[b, q, c], expected)


def test_the_order_of_candidates_depends_on_the_reason() -> None:
    """A linear layer over [a; q] would give every question of a stream the same order."""
    head, candidates = candidate_head(), three_and_two()
    scores = head(10 * torch.randn(2, 64, 6), candidates)[0]
    gaps = scores[:, 1] - scores[:, 0]
    assert gaps.std() > 1e-3


def test_a_candidate_without_words_cannot_be_chosen() -> None:
    head, reason, candidates = candidate_head(), torch.randn(2, 1, 6), three_and_two()
    scores = head(reason, candidates)[:, 0]
    assert torch.equal(scores == -torch.inf, ~candidates.token_mask.any(dim=-1))
    assert scores.softmax(dim=-1)[1, 2] == 0
    scores.softmax(dim=-1).max().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


def test_permuting_the_candidates_permutes_their_scores() -> None:
    head, reason, candidates = candidate_head(), torch.randn(2, 2, 6), three_and_two()
    permuted = torch.tensor([2, 0, 1])
    moved = Candidates(*(value[:, permuted] for value in candidates))
    assert_close(head(reason, moved), head(reason, candidates)[..., permuted])


def test_a_question_without_candidates_is_refused() -> None:
    with pytest.raises(BadInput, match="came without any"):
        candidate_head()(torch.randn(2, 1, 6))


def test_the_click_head_gives_one_logit_a_question() -> None:
    head, reason = ClickHead(model_dim=4), torch.randn(3, 4)
    logits = head(reason)
    assert logits.shape == (3, 1)
    expected = [[dot(head.score.weight[0].tolist(), row.tolist()) + head.score.bias.item()] for row in reason]
    assert_close(logits, expected)


def test_where_products_are_16_bits_wide_scores_that_are_ranked_are_not() -> None:
    lengths = torch.full((1, 100), 2)
    candidates = Candidates(torch.randint(9, (1, 100, 2)), torch.arange(2) < lengths[..., None])
    candidates.tokens[0, :, 0], candidates.tokens[0, :, 1] = torch.arange(100) % 9, torch.arange(100) // 9 % 9
    different = len(candidates.tokens[0].unique(dim=0))
    reasons = torch.randn(1, 100, 6)
    with torch.autocast("cpu", torch.bfloat16):
        chosen = candidate_head(match=True)(reasons[:, :1], candidates)
        clicked = ClickHead(model_dim=6)(reasons)
    assert (chosen.dtype, len(chosen.unique())) == (torch.float32, different)
    assert (clicked.dtype, len(clicked.unique())) == (torch.float32, 100)
