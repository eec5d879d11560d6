"""DIEN: a GRU makes interests of the history, and a second one, opened by the target's attention, follows one of them.

Zhou et al., "Deep Interest Evolution Network for Click-Through Rate Prediction", AAAI 2019.

Changed:

1. The negative behaviour of the auxiliary loss is an item of another stream of the batch, so that it is drawn as often
   as it is clicked; the original draws from the log of all clicks.
2. Besides the last state, the layers above see the mean of the history and its product with the target where the
   original has the sum, which grows with the history.
3. The attention's hidden layers are ReLU, as in the program behind the published number on XLong; that program leaves
   out the auxiliary loss, which is here as the original has it, with a weight of 1.
4. GRUs reset the product with the state and not the state itself, as fused ones do.

The first layer of the attention sees [x; h; x - h; x * h]. It is split over its four inputs, so that nothing of that
width is made for each pair of target and item.

Shape letters beside the usual ones: h width of an interest, a width of the attention's first layer.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.click import Clicks, ClickTower, History, softmax_over, states_at
from remem.model.fragments import random_below
from remem.model.interface import gather_rows
from remem.model.recurrent import gru_gates
from remem.ops.precision import at_least_float32


class InterestAttention(nn.Module):
    """a_t = softmax_t(MLP([x'; h_t; x' - h_t; x' * h_t])), x' = PReLU(W x)."""

    def __init__(self, *, item_dim: int, hidden_dim: int, widths: tuple[int, int] = (80, 40)) -> None:
        super().__init__()
        self.to_query = nn.Sequential(nn.Linear(item_dim, hidden_dim), nn.PReLU())
        self.first = nn.Linear(4 * hidden_dim, widths[0])
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(*widths), nn.ReLU(), nn.Linear(widths[1], 1))

    def forward(
        self, targets: Float[Tensor, "b q d"], interests: Float[Tensor, "b l h"], visible: Bool[Tensor, "b q l"]
    ) -> Float[Tensor, "b q l"]:
        query = self.to_query(targets)
        of_query, of_interest, of_difference, of_product = self.first.weight.chunk(4, dim=1)  # [a, h] each
        pairs = (of_product * query[:, :, None]).flatten(1, 2)  # [b, q a, h]
        hidden = (interests @ pairs.mT).unflatten(-1, (query.shape[1], -1))  # [b, l, q, a]
        hidden = hidden + F.linear(interests, of_interest - of_difference)[:, :, None]
        hidden = hidden + F.linear(query, of_query + of_difference, self.first.bias)[:, None]
        return softmax_over(self.rest(hidden).squeeze(-1).mT, visible)


class AttentionalGRUCell(nn.Module):
    """AUGRU: h' = (1 - a u) h + a u n, with a the attention, u the update gate and n the candidate of a GRU.

    Where the attention is zero the state stays to the bit, so that nothing after the question counts.
    """

    def __init__(self, *, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.from_interest = nn.Linear(input_dim, 3 * hidden_dim)
        self.from_state = nn.Linear(hidden_dim, 3 * hidden_dim)

    def forward(
        self, state: Float[Tensor, "b q h"], inputs: Float[Tensor, "b g"], attention: Float[Tensor, "b q"]
    ) -> Float[Tensor, "b q h"]:
        """One item, whose side of the gates is given, for all targets of each stream."""
        kept, new = gru_gates(inputs[:, None], self.from_state(state))
        return state + attention[..., None] * (1 - kept) * (new - state)


class NextBehaviour(nn.Module):
    """The auxiliary loss: an interest tells the next behaviour from one of somebody else.

    L = -mean_t (log sigma(MLP[h_t; e_{t+1}]) + log(1 - sigma(MLP[h_t; e^-_{t+1}])))
    """

    def __init__(self, *, item_dim: int, hidden_dim: int, widths: tuple[int, int] = (100, 50)) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden_dim + item_dim, widths[0]),
            nn.Sigmoid(),
            nn.Linear(*widths),
            nn.Sigmoid(),
            nn.Linear(widths[1], 1),
        )

    def forward(
        self,
        interests: Float[Tensor, "b l h"],
        following: Float[Tensor, "b l d"],
        others: Float[Tensor, "b l d"],
        counted: Bool[Tensor, "b l"],
    ) -> Float[Tensor, ""]:
        pairs = torch.stack([torch.cat([interests, items], dim=-1) for items in (following, others)])
        right, wrong = at_least_float32(self.layers(pairs).squeeze(-1))
        loss = F.softplus(-right) + F.softplus(wrong)
        return loss.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


def behaviours_of_others(
    items: Float[Tensor, "b l d"], real: Bool[Tensor, "b l"], count: int
) -> Float[Tensor, "b n d"]:
    """For each stream some items of one other stream; its own, if there is no other."""
    streams = torch.arange(len(items), device=items.device)
    step = 1 + random_below(torch.full_like(streams, len(items) - 1)) if len(items) > 1 else torch.zeros_like(streams)
    other = (streams + step) % len(items)
    lengths = real.sum(dim=1).clamp(min=1)[other]
    return gather_rows(items[other], random_below(lengths[:, None].expand(-1, count)))


class DIEN(nn.Module):
    """p(click) from [g; x; mean; mean * x], with g the last state of the AUGRU over the interests."""

    def __init__(
        self,
        *,
        item_dim: int,
        hidden_dim: int | None = None,
        auxiliary_weight: float = 1.0,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        width = hidden_dim or item_dim
        self.extractor = nn.GRU(item_dim, width, batch_first=True)
        self.attention = InterestAttention(item_dim=item_dim, hidden_dim=width)
        self.evolution = AttentionalGRUCell(input_dim=width, hidden_dim=width)
        self.next_behaviour = NextBehaviour(item_dim=item_dim, hidden_dim=width)
        self.tower = ClickTower(input_dim=width + 3 * item_dim, dropout=dropout)
        self.auxiliary_weight = auxiliary_weight

    def forward(self, history: History) -> Clicks:
        items = at_least_float32(history.items)
        # 32 bits: a state is rounded again at each of 1,000 items
        with torch.autocast(items.device.type, enabled=False):
            interests, _ = self.extractor(items)
        attention = self.attention(history.targets, interests, history.visible())
        with torch.autocast(items.device.type, enabled=False):
            evolved = self.evolve(interests, attention)
            mean = states_at(items.cumsum(dim=1), history.seen) / history.seen.clamp(min=1)[..., None]
        logits = self.tower(evolved, history.targets, mean, mean * history.targets)
        figures = {"attention_entropy": torch.special.entr(attention.detach()).sum(dim=-1).mean()}
        return Clicks(logits, self.auxiliary(interests, history) if self.training else {}, figures)

    def evolve(self, interests: Float[Tensor, "b l h"], attention: Float[Tensor, "b q l"]) -> Float[Tensor, "b q h"]:
        """The last state of each target's interest."""
        inputs = self.evolution.from_interest(interests)  # all at once, before anything waits for anything
        state = inputs.new_zeros(*attention.shape[:2], interests.shape[-1])
        for item, opened in zip(inputs.unbind(dim=1), attention.unbind(dim=2), strict=True):
            state = self.evolution(state, item, opened)
        return state

    def auxiliary(self, interests: Float[Tensor, "b l h"], history: History) -> dict[str, Float[Tensor, ""]]:
        """The loss on the next behaviour of every item but the last."""
        if not self.auxiliary_weight:
            return {}
        others = behaviours_of_others(history.items, history.real, history.items.shape[1] - 1)
        loss = self.next_behaviour(interests[:, :-1], history.items[:, 1:], others, history.real[:, 1:])
        return {"next_behaviour": self.auxiliary_weight * loss}

    def compile_parts(self, backend: str) -> None:
        """The step of the AUGRU, which a history repeats."""
        self.evolution.compile(backend=backend)
