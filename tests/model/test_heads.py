from __future__ import annotations

import torch
from builders import assert_close, dot
from torch import Tensor, nn

from remem.model.embed import SentenceQueryEncoder
from remem.model.heads import CandidateHead, ClassHead, ClickHead


def candidate_head() -> CandidateHead:
    encoder = SentenceQueryEncoder(words=nn.Embedding(9, 5), model_dim=4)
    return CandidateHead(candidate_encoder=encoder, model_dim=4)


def candidates() -> tuple[Tensor, Tensor]:
    """Three candidates of the first question, two of the second."""
    lengths = torch.tensor([[3, 1, 2], [2, 3, 0]])
    return torch.randint(9, (2, 3, 3)), torch.arange(3) < lengths[..., None]


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


def test_the_candidate_head_scores_each_sentence_beside_the_reason() -> None:
    head, reason, (tokens, mask) = candidate_head(), torch.randn(2, 4), candidates()
    scores = head(reason, tokens, mask)
    assert scores.shape == (2, 3)
    for b, c in mask.any(dim=-1).nonzero().tolist():
        sentence = tokens[b, c][mask[b, c]][None]
        feature = head.candidate_encoder(sentence, torch.ones_like(sentence, dtype=torch.bool))[0]
        assert_close(scores[b, c], head.score(torch.cat([feature, reason[b]]))[0])


def test_a_candidate_without_words_cannot_be_chosen() -> None:
    head, reason, (tokens, mask) = candidate_head(), torch.randn(2, 4), candidates()
    scores = head(reason, tokens, mask)
    assert torch.equal(scores == -torch.inf, ~mask.any(dim=-1))
    assert scores.softmax(dim=-1)[1, 2] == 0
    scores.softmax(dim=-1).max().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


def test_permuting_the_candidates_permutes_their_scores() -> None:
    head, reason, (tokens, mask) = candidate_head(), torch.randn(2, 4), candidates()
    permuted = torch.tensor([2, 0, 1])
    assert_close(head(reason, tokens[:, permuted], mask[:, permuted]), head(reason, tokens, mask)[:, permuted])


def test_the_click_head_gives_one_logit_a_question() -> None:
    head, reason = ClickHead(model_dim=4), torch.randn(3, 4)
    logits = head(reason)
    assert logits.shape == (3,)
    assert_close(logits, [dot(head.score.weight[0].tolist(), row.tolist()) + head.score.bias.item() for row in reason])
