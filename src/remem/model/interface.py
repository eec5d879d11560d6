"""What every method offers: a memory that is written segment by segment, or a reasoner that sees the whole stream."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from remem.data.batch import QueryBatch, Segment, StreamBatch
from remem.model.embed import Embedding

State = tuple[Any, ...]
S = TypeVar("S", bound=State)


class EmbeddedStream(NamedTuple):
    """Streams of embedded items: distinct segments once, and each stream's row of segment numbers."""

    items: Float[Tensor, "s n d"]
    item_mask: Bool[Tensor, "s n"]
    order: Int[Tensor, "b t"]
    segment_mask: Bool[Tensor, "b t"]
    in_turn: bool = False
    """Whether the table holds each stream's segments in turn, so that `order` counts from 0 to b t - 1."""
    most_items: int | None = None
    """No stream has more real items than this; None if unknown, and then it is t n."""
    ids: Int[Tensor, "s n"] | None = None
    """The items' own numbers, for a method that learns to name them; None where items are vectors to begin with."""

    def turns(self, table: Float[Tensor, "s ..."]) -> tuple[Float[Tensor, "b ..."], ...]:
        """What a table of segments holds for the first segment of each stream, the second, and so on.

        An index for each turn would do, but its gradient is as large as the whole table, every time.
        """
        rows = table if self.in_turn else table.index_select(0, self.order.flatten())
        return rows.unflatten(0, self.order.shape).unbind(1)


class Trace(NamedTuple):
    """What writing a whole stream leaves: the last state, and the memory before the first and after every segment."""

    state: State
    memories: Float[Tensor, "b t+1 k d"]
    figures: dict[str, Float[Tensor, ""]]
    """What is worth a look while training. Where writing has weights over the slots, `write_entropy` is their mean
    entropy in nats: log K when everything is spread evenly."""
    losses: dict[str, Float[Tensor, ""]]
    """Losses of the method itself, weighted, to be added to the task's."""


@runtime_checkable
class Memorizer(Protocol):
    """A fixed-size memory. All that changes over a stream is in its state, a named tuple of tensors, batch first."""

    def initial_state(self, batch_size: int) -> State:
        """The memory before the first segment."""
        ...

    def write(self, state: Any, segment: Segment) -> State:
        """The memory after one more segment. Pure; a row with no real item keeps its state."""
        ...

    def write_stream(self, state: Any, stream: EmbeddedStream) -> Trace:
        """The same as `write` for each segment in turn, with all that needs no memory done at once."""
        ...

    def memory(self, state: Any) -> Float[Tensor, "b k d"]:
        """All that reasoner and rehearsal may read."""
        ...

    def compile_parts(self, backend: str) -> None:
        """Compile, in place, whatever is one graph of few shapes; nothing, where that does not pay."""
        ...


class DirectReasoner(Protocol):
    """T(X, Q): may see the whole stream while answering."""

    def __call__(self, stream: StreamBatch, query: QueryBatch) -> Float[Tensor, "b q c"]:
        """A score for each answer: a class, one of the stream's candidates, or a click's logit alone."""
        ...


class Answers(NamedTuple):
    """What a direct model that has more to train than its answers says of a batch."""

    scores: Float[Tensor, "b q c"]
    losses: dict[str, Float[Tensor, ""]]
    """Losses of the method itself, weighted, to be added to the task's; none unless the model is training."""
    figures: dict[str, Float[Tensor, ""]]
    """What is worth a look while training."""


@runtime_checkable
class OwnLosses(Protocol):
    """A direct model with losses of its own, and a step that is worth compiling."""

    def answer_and_losses(self, stream: StreamBatch, query: QueryBatch) -> Answers:
        """The scores, with all else that is to be trained."""
        ...

    def compile_parts(self, backend: str) -> None:
        """Compile, in place, whatever is one graph of few shapes."""
        ...


def embed_stream(embed: Embedding, stream: StreamBatch) -> EmbeddedStream:
    """The stream as a memory reads it."""
    ids = None if stream.items.is_floating_point() else stream.items
    return EmbeddedStream(embed(stream.items), *stream[1:], ids=ids)


def gather_rows(values: Tensor, index: Int[Tensor, "b q"]) -> Tensor:
    """values[b, index[b, q]] for each stream: [b, t, ...] -> [b, q, ...]."""
    return gather_each(values, index)[0]


def gather_each(values: Tensor, *indices: Int[Tensor, "b _"]) -> tuple[Tensor, ...]:
    """The same for several indices at once: a lookup's gradient is as large as `values`, so one is better than two."""
    # by rows of a table: the gradient of that is a plain sum into rows, without the sorting that `values[b, q]` needs
    first = torch.arange(len(values), device=values.device)[:, None] * values.shape[1]
    rows = torch.cat([(first + index).flatten() for index in indices])
    found = values.flatten(0, 1).index_select(0, rows).split([index.numel() for index in indices])
    return tuple(part.unflatten(0, index.shape) for part, index in zip(found, indices, strict=True))


def detach_state(state: S) -> S:
    """The same state, free of gradients and of the memory it may be a view of."""
    return type(state)(*(value.detach().clone() for value in state))
