"""RUM: the user's last items are a memory that the target reads by attention.

Chen et al., "Sequential Recommendation with User Memory Networks", WSDM 2018, the item-level form.

Changed:

1. The memory holds the whole history unless `memory_items` keeps the last few, as the original's queue of 5 to 20 does:
   all models that reason directly may read everything.
2. The strength of the attention, a constant in the original, is learned; it starts at the inverse root of the width.
3. What a user likes in general is one learned vector for all, since those who are tested are not those trained on; the
   share alpha of the memory is learned from the original's 0.2 on.
4. User, target and their element-wise product, which holds the original's score, go through the layers that all models
   of a click share.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.baselines.click import Clicks, ClickTower, History, softmax_over
from remem.ops.precision import at_least_float32


class RUM(nn.Module):
    """p(click) from [u; x; u * x].

    w_i = softmax_i(beta x . e_i)     u = p + alpha sum_i w_i e_i
    """

    def __init__(self, *, item_dim: int, memory_items: int | None = None, dropout: float = 0.2) -> None:
        super().__init__()
        self.memory_items = memory_items
        self.strength = nn.Parameter(torch.tensor(item_dim**-0.5))  # beta
        self.taste = nn.Parameter(torch.zeros(item_dim))  # p
        self.share = nn.Parameter(torch.tensor(0.2))  # alpha
        self.tower = ClickTower(input_dim=3 * item_dim, dropout=dropout)

    def forward(self, history: History) -> Clicks:
        read = self.read(history)
        user = self.taste + self.share * read
        return Clicks(self.tower(user, history.targets, user * history.targets), {}, {})

    def read(self, history: History) -> Float[Tensor, "b q d"]:
        """What the target finds in the memory; nothing, if it is empty."""
        items = at_least_float32(history.items)
        with torch.autocast(items.device.type, enabled=False):
            scores = self.strength * (at_least_float32(history.targets) @ items.mT)  # [b, q, l]
            visible = history.visible()
            if self.memory_items is not None:
                place = torch.arange(items.shape[1], device=items.device)
                visible = visible & (place >= history.seen[..., None] - self.memory_items)
            return softmax_over(scores, visible) @ items

    def compile_parts(self, backend: str) -> None:
        """Nothing: one attention is a handful of kernels."""
