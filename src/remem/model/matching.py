"""What question and candidate have in common with the same slots, by inner products of their words."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.data.batch import Candidates
from remem.model.embed import lookup
from remem.ops.precision import at_least_float32

_LEAST_WEIGHT = 0.05  # of a word that tells next to nothing: from 0 no gradient would lead away
_WEIGHT_GAIN = 20.0  # Adam moves a number by a thousandth in a step, and words must be told apart in a few hundred


class WordMatch(nn.Module):
    """Looks for a candidate's words in the slots that hold the question's.

    gamma_k = e^beta q . W m_k     score_i = e^lambda sum_k softmax(gamma)_k c_i . W m_k - mu q . c_i

    q and c_i are sums of the embeddings of the words, each by a weight of its own, and W m_k are the slots without what
    all of them share, everything of length one; W starts as the identity. The additive scores of Appendix A have to
    learn for every word what it is like; an inner product knows a word that it never met. What a candidate only repeats
    from the question (mu) is no answer.
    """

    def __init__(self, *, words: nn.Embedding, strength: float = 1.5, rare_first: bool = False) -> None:
        super().__init__()
        self.words = words
        self.asked_weight, self.candidate_weight = (nn.Embedding(words.num_embeddings, 1) for _ in range(2))
        for weight in (self.asked_weight, self.candidate_weight):
            nn.init.zeros_(weight.weight)
            if rare_first:
                with torch.no_grad():
                    weight.weight[:, 0] = _rareness(words.num_embeddings).expm1().log() / _WEIGHT_GAIN
        self.slot_side = nn.Linear(words.embedding_dim, words.embedding_dim, bias=False)  # W
        nn.init.eye_(self.slot_side.weight)
        self.sharpness = nn.Parameter(torch.tensor(2.5))  # beta
        self.strength = nn.Parameter(torch.tensor(strength))  # lambda
        self.repeated = nn.Parameter(torch.tensor(1.0))  # mu

    def forward(
        self,
        memory: Float[Tensor, "b q k d"],
        tokens: Int[Tensor, "b q w"],
        token_mask: Bool[Tensor, "b q w"],
        candidates: Candidates,
    ) -> Float[Tensor, "b q c"]:
        asked = self._sum(self.asked_weight, tokens, token_mask)  # [b, q, d]
        chosen = self._sum(self.candidate_weight, *candidates)  # [b, c, d]
        slots = at_least_float32(self.slot_side(memory))
        slots = F.normalize(slots - slots.mean(dim=-2, keepdim=True), dim=-1)
        read = (self.sharpness.exp() * (slots @ asked[..., None]).squeeze(-1)).softmax(dim=-1)  # [b, q, k]
        evidence = (read[..., None, :] @ slots).squeeze(-2)
        return (self.strength.exp() * evidence - self.repeated * asked) @ chosen.mT

    def _sum(
        self, weight: nn.Embedding, tokens: Int[Tensor, "b t w"], mask: Bool[Tensor, "b t w"]
    ) -> Float[Tensor, "b t d"]:
        shares = F.softplus(_WEIGHT_GAIN * lookup(weight, tokens)) * mask[..., None]
        return F.normalize(at_least_float32((shares * lookup(self.words, tokens)).sum(dim=-2)), dim=-1)


def _rareness(count: int) -> Float[Tensor, " words"]:
    """What each word weighs if rare ones tell more, by Zipf's law.

    A vocabulary begins with its most frequent word, the n-th occurs about 1/n as often, and tells log n more.
    """
    return (2 * torch.arange(count).log1p() / math.log1p(count)).clamp(min=_LEAST_WEIGHT)
