"""Models of a click that read a user's whole history again for every target: what they share.

A target is a question of one item. It sees what was read before it was asked, shares its embedding with the history,
and is answered by one logit. What is special to a method is its `HistoryReader`; embedding and packing stand here, and
the layers that make a logit of what was found.

The history is read once for all targets of a stream wherever the method allows it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.data.batch import QueryBatch, StreamBatch
from remem.model.embed import ItemEmbedding
from remem.model.interface import Answers, gather_rows
from remem.model.packing import pack
from remem.ops.precision import at_least_float32


class History(NamedTuple):
    """All items of each stream in a row, and what each question asks of them."""

    items: Float[Tensor, "b l d"]
    real: Bool[Tensor, "b l"]
    """Real items come first, padding after them."""
    targets: Float[Tensor, "b q d"]
    seen: Int[Tensor, "b q"]
    """Items read before the question."""

    def visible(self) -> Bool[Tensor, "b q l"]:
        """Which items a question may look at."""
        return torch.arange(self.items.shape[1], device=self.seen.device) < self.seen[..., None]


class Clicks(NamedTuple):
    """What a reader says of a batch."""

    logits: Float[Tensor, "b q"]
    losses: dict[str, Float[Tensor, ""]]
    """Losses of the method itself, weighted; none unless it is training."""
    figures: dict[str, Float[Tensor, ""]]
    """What is worth a look while training."""


class HistoryReader(Protocol):
    """A method: from a history and its targets to logits."""

    def __call__(self, history: History) -> Clicks:
        """A logit for each target."""
        ...

    def compile_parts(self, backend: str) -> None:
        """Compile, in place, whatever is one graph of few shapes."""
        ...


class ClickModel(nn.Module):
    """T(X, Q) of a click: embedding and reader."""

    def __init__(self, *, embed: ItemEmbedding, reader: nn.Module) -> None:
        super().__init__()
        self.embed, self.reader = embed, reader

    def history(self, stream: StreamBatch, query: QueryBatch) -> History:
        """Embedded items one after the other, and the targets."""
        packed = pack(stream.item_mask, stream.order, stream.segment_mask, stream.most_items)
        items = self.embed(stream.items.flatten(0, 1)[packed.rows])
        seen = gather_rows(packed.read, query.position)
        return History(items, packed.real, self.embed(query.tokens[..., 0]), seen)

    def answer_and_losses(self, stream: StreamBatch, query: QueryBatch) -> Answers:
        """One logit for each target, with all else that is to be trained."""
        reader: Any = self.reader
        clicks: Clicks = reader(self.history(stream, query))
        return Answers(clicks.logits[..., None], clicks.losses, clicks.figures)

    def forward(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q 1"]:
        """One logit for each target."""
        return self.answer_and_losses(stream, query).scores

    def compile_parts(self, backend: str) -> None:
        """Whatever the reader says is worth it."""
        reader: Any = self.reader
        reader.compile_parts(backend)


class ClickTower(nn.Module):
    """From what was found to a logit: two hidden layers of 200 and 80, as in all programs these methods come from.

    The originals put a BatchNorm in front, which their programs use as a mere affine map; a linear layer has that.
    """

    def __init__(self, *, input_dim: int, dropout: float, widths: tuple[int, int] = (200, 80)) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for width in widths:
            self.layers.extend([nn.Linear(input_dim, width), nn.ELU(), nn.Dropout(dropout)])
            input_dim = width
        self.layers.append(nn.Linear(input_dim, 1))

    def forward(self, *found: Float[Tensor, "b q _"]) -> Float[Tensor, "b q"]:
        return at_least_float32(self.layers(torch.cat(found, dim=-1)).squeeze(-1))


def softmax_over(scores: Float[Tensor, "*b l"], visible: Bool[Tensor, "*b l"]) -> Float[Tensor, "*b l"]:
    """A softmax over the visible places; zero everywhere where there is none."""
    scores = at_least_float32(scores)
    return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(dim=-1) * visible


def states_at(states: Float[Tensor, "b l h"], seen: Int[Tensor, "b q"]) -> Float[Tensor, "b q h"]:
    """What was known after so many items: zero before the first."""
    return gather_rows(nn.functional.pad(states, (0, 0, 1, 0)), seen)
