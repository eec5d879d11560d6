"""Caser: the history as an image, an item to a row, under horizontal and vertical convolutions.

Tang and Wang, "Personalized Top-N Sequential Recommendation via Convolutional Sequence Embedding", WSDM 2018.

Changed, for histories of 1,000 items where the original looks at the last five:

1. Horizontal filters have the heights 2, 4, 8 and 16, not every height up to the image's; each is pooled over all
   windows of the history before the question. A running maximum gives that for every question of a stream at once.
2. Vertical filters weigh the last `window` items by their age, over the whole width of an item at a time. The weights
   start equal and small, so that a filter begins as a mean over the window.
3. Instead of a product with every item of the shop, what was found, the target and their element-wise product go
   through the layers that all models of a click share. There is no user embedding: those who are tested are not those
   trained on.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.click import Clicks, ClickTower, History, states_at
from remem.ops.precision import at_least_float32


class Caser(nn.Module):
    """p(click) from [z; x; z * x], z = relu(W [horizontal; vertical]).

    horizontal_f = max over windows i of relu(F_f . E_{i:i+h})     vertical_v = sum_a V_va E_{last - a}
    """

    def __init__(
        self,
        *,
        item_dim: int,
        heights: tuple[int, ...] = (2, 4, 8, 16),
        filters_per_height: int = 16,
        vertical_filters: int = 4,
        window: int = 1000,
        image_dropout: float = 0.5,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.horizontal = nn.ModuleList(nn.Conv1d(item_dim, filters_per_height, height) for height in heights)
        # V: a row for each age, the youngest first
        self.vertical = nn.Parameter((1 + 0.1 * torch.randn(window, vertical_filters)) / window)
        self.image_dropout = nn.Dropout(image_dropout)
        self.mix = nn.Linear(len(heights) * filters_per_height + vertical_filters * item_dim, item_dim)
        self.tower = ClickTower(input_dim=3 * item_dim, dropout=dropout)

    def forward(self, history: History) -> Clicks:
        found = torch.cat([self.highest(history), self.weighed(history)], dim=-1)
        image = F.relu(self.mix(self.image_dropout(found)))
        return Clicks(self.tower(image, history.targets, image * history.targets), {}, {})

    def highest(self, history: History) -> Float[Tensor, "b q f"]:
        """Of each horizontal filter, the largest answer of all windows that end before the question."""
        image = history.items.mT  # [b, d, l]
        # a window ends at each item; those at the beginning reach into zeros
        answers = [F.relu(conv(F.pad(image, (conv.kernel_size[0] - 1, 0)))) for conv in self._convolutions()]
        largest = at_least_float32(torch.cat(answers, dim=1)).cummax(dim=2).values
        return states_at(largest.mT, history.seen)

    def weighed(self, history: History) -> Float[Tensor, "b q x"]:
        """Of each vertical filter, the items weighed by their age at the question."""
        place = torch.arange(history.items.shape[1], device=history.seen.device)
        age = history.seen[..., None] - 1 - place  # [b, q, l]; negative if not yet read
        weights = F.embedding(age.clamp(0, len(self.vertical) - 1), self.vertical)  # [b, q, l, v]
        there = (age >= 0) & (age < len(self.vertical))
        weights = weights.masked_fill(~there[..., None], 0.0).mT.flatten(1, 2)  # [b, q v, l]
        return (weights @ at_least_float32(history.items)).unflatten(1, (age.shape[1], -1)).flatten(2)

    def _convolutions(self) -> list[nn.Conv1d]:
        return [conv for conv in self.horizontal if isinstance(conv, nn.Conv1d)]

    def compile_parts(self, backend: str) -> None:
        """Nothing: there is no step to repeat, and histories have many lengths."""
