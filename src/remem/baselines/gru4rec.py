"""GRU4REC: a GRU reads the history, and its last state is compared with the target.

Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", ICLR 2016; as a model of clicks as in Ren
et al., "Lifelong Sequential Modeling", SIGIR 2019.

Changed: the original ranks all items of a session by their product with the state, trained by ranking losses on
session-parallel batches. Here the state, the target and their element-wise product, which holds the original's score,
go through the layers that all models of a click share, trained on clicks. In the program behind the published number on
XLong the target is read as one more item and the last state classified; `appended` does that.

The recurrence has 32 bits: a state is rounded again at each of 1,000 items.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.click import Clicks, ClickTower, History, states_at
from remem.model.recurrent import gru_step
from remem.ops.precision import at_least_float32


class GRU4Rec(nn.Module):
    """p(click) from [h; x; W h * x], with h the state after the last item before the question.

    Args:
        appended: read the target as one more item, from the state at the question, before it is compared.
    """

    def __init__(self, *, item_dim: int, hidden_dim: int | None = None, appended: bool = False, dropout: float = 0.2):
        super().__init__()
        width = hidden_dim or item_dim
        self.gru = nn.GRU(item_dim, width, batch_first=True)
        self.to_item = nn.Linear(width, item_dim) if width != item_dim else nn.Identity()
        self.tower = ClickTower(input_dim=width + 2 * item_dim, dropout=dropout)
        self.appended = appended

    def forward(self, history: History) -> Clicks:
        with torch.autocast(history.items.device.type, enabled=False):
            states, _ = self.gru(at_least_float32(history.items))
            state = states_at(states, history.seen)
            if self.appended:
                state = self.read(at_least_float32(history.targets), state)
        return Clicks(self.tower(state, history.targets, self.to_item(state) * history.targets), {}, {})

    def read(self, items: Float[Tensor, "*b d"], states: Float[Tensor, "*b h"]) -> Float[Tensor, "*b h"]:
        """One more step of the GRU."""
        for_items, for_states, of_items, of_states = self.gru.all_weights[0]
        return gru_step(F.linear(items, for_items, of_items), F.linear(states, for_states, of_states), states)

    def compile_parts(self, backend: str) -> None:
        """Nothing: a GRU over a whole history has kernels of its own."""
