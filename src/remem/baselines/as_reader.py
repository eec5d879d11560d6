"""AS Reader: Kadlec et al., Text Understanding with the Attention Sum Reader Network, ACL 2016.

One network reads the text, another the question. Attention over the text's words is added up for each word, wherever it
stands, so that answers are pointed at and never looked up:

    s_t = bi-GRU(text)_t     g = bi-GRU(question)     a = softmax_t(s_t . g)     P(w) = sum_t a_t [word_t = w]

The original answers with one word. Of a candidate of several words, as NarrativeQA has them, the score is

    score = tau * sum_j r(w_j) log P(w_j) / sum_j r(w_j)

Ours are: r(w) = sigma(v . x_w), so that articles and marks count less, and 0 for words that are in the question, unless
all are, since an answer that repeats the question says nothing; the place "nowhere", a learned vector beside the s_t
and as heavy as all of them, whose share of the attention goes to any word by sigma(v' . x_w + x_w . W g), since many
answers hold a word that is not in the text, and a question tells what to expect; the factor tau; dropout on the words'
vectors. Text, question and candidates share their words' vectors.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.baselines.directly_reason import encode_questions
from remem.baselines.reading import Reading, by_view, read_stream
from remem.data.batch import QueryBatch, StreamBatch
from remem.errors import BadInput
from remem.model.embed import ItemEmbedding, SentenceQueryEncoder
from remem.model.recurrent import BiGRU
from remem.ops.precision import at_least_float32

LEAST = 1e-8  # of a word's probability
OUTSIDE = -6.0  # a word from nowhere starts about as likely as one that stands in a text of some hundred words once


class ASReader(nn.Module):
    """T(X, Q) by pointing at the words of the text."""

    def __init__(self, *, num_words: int, word_dim: int, model_dim: int, word_std: float, dropout: float) -> None:
        super().__init__()
        self.embed = ItemEmbedding(num_items=num_words, item_dim=word_dim, std=word_std)
        self.query_encoder = SentenceQueryEncoder(words=self.embed.table, model_dim=model_dim)
        self.reader = BiGRU(input_dim=word_dim, output_dim=model_dim)
        self.nowhere = nn.Parameter(torch.randn(model_dim) * model_dim**-0.5)
        self.outside = nn.Linear(word_dim, 1)  # v', whether a word is one that comes from nowhere,
        self.expected = nn.Linear(model_dim, word_dim, bias=False)  # and W, as an answer to this question
        nn.init.constant_(self.outside.bias, OUTSIDE)
        self.weight = nn.Linear(word_dim, 1)  # v, how much a word of a candidate counts
        self.log_scale = nn.Parameter(torch.zeros(()))  # log tau
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each candidate."""
        if query.candidates is None:
            raise BadInput("AS Reader chooses among candidate answers; the question came without any.")
        reading = read_stream(stream, query)
        words = stream.items.flatten(0, 1)[reading.rows]  # [b, l]
        question = encode_questions(self.query_encoder, query)
        attention = self._attend(words, reading, question)  # [b, q, l + 1]
        tokens, mask = query.candidates
        same = tokens.flatten(1)[..., None] == words[:, None]  # [b, c w, l]
        found = (attention[..., :-1] @ same.to(attention.dtype).mT).unflatten(-1, mask.shape[1:])  # [b, q, c, w]
        vectors = self.embed(tokens)
        expected = (self.expected(question) @ vectors.flatten(1, 2).mT).unflatten(-1, mask.shape[1:])
        elsewhere = at_least_float32(self.outside(vectors).squeeze(-1)[:, None] + expected).sigmoid()  # [b, q, c, w]
        chance = found + attention[..., -1, None, None] * elsewhere
        weights = at_least_float32(self.weight(vectors)).sigmoid().squeeze(-1)[:, None] * _counted(query, tokens, mask)
        score = (weights * (chance + LEAST).log()).sum(dim=-1) / weights.sum(dim=-1).clamp(min=LEAST)
        return (self.log_scale.exp() * score).masked_fill(~mask.any(dim=-1)[:, None], -torch.inf)

    def _attend(
        self, words: Int[Tensor, "b l"], reading: Reading, question: Float[Tensor, "b q m"]
    ) -> Float[Tensor, "b q l+1"]:
        """The weights of the text's words, and of nowhere."""
        b, v, _ = reading.real.shape
        items = self.dropout(self.embed(words))[:, None].expand(-1, v, -1, -1)
        states, _ = self.reader(items.flatten(0, 1), reading.real.flatten(0, 1))
        asked = by_view(question, v)  # [b, v, p, m]
        scores = at_least_float32(asked @ states.unflatten(0, (b, v)).mT)  # [b, v, p, l]
        scores = scores.masked_fill(~reading.real[:, :, None], -torch.inf)
        length = reading.real.sum(dim=-1).clamp(min=1).log()[:, :, None]  # as heavy as the whole text to begin with
        nowhere = (at_least_float32(asked @ self.nowhere) + length)[..., None]
        return torch.cat([scores, nowhere], dim=-1).softmax(dim=-1).flatten(1, 2)


def _counted(query: QueryBatch, tokens: Int[Tensor, "b c w"], mask: Bool[Tensor, "b c w"]) -> Bool[Tensor, "b q c w"]:
    """The words of each candidate that the question does not hold; all of them, where it holds all."""
    same = tokens[:, None, :, :, None] == query.tokens[:, :, None, None]  # [b, q, c, w, words of the question]
    asked = (same & query.token_mask[:, :, None, None]).any(dim=-1)
    new = mask[:, None] & ~asked
    return torch.where(new.any(dim=-1, keepdim=True), new, mask[:, None])
