"""HPMN: a tower of GRUs, each slower than the one beneath it, whose states are the memory.

Ren et al., "Lifelong Sequential Modeling with Personalized Memorization for User Response Prediction", SIGIR 2019.

Changed for the shared harness:

1. The memory is built from the history alone. The authors' program reads the target as one more item before the memory
   is asked about it.
2. Padding is not read; theirs runs through the GRUs, in front of the history.
3. The reader is the reasoner that all methods share, with the memory in K slots: the state of each of the D layers is K
   / D slots wide and cut into as many rows, and each row carries a learned mark of its place, so that a question can
   ask for what is slow. With D = 10 layers that double their interval, the slowest moves every 512 items.
4. Nothing limits the length: the number of items read is kept modulo the slowest interval.
5. The covariance loss is a mean over streams. The authors' is a sum over a batch of 500 with a weight of 5e-5, which is
   our weight of 0.025.

The whole stream goes through one layer after the other, not item by item: a layer's inputs are the states beneath it at
every `period`-th update, so that a fused GRU runs over each, and all layers together take about twice the steps of the
first. Where streams differ in how much they have read before, each picks its own updates.

Shape letters beside the usual ones: y layers, h width of a layer, u updates of a layer.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from remem.data.batch import Segment
from remem.errors import BadInput
from remem.model.interface import EmbeddedStream, Trace, gather_rows
from remem.model.packing import pack, without_padding
from remem.ops.precision import at_least_float32

EPSILON = 1e-12  # under the root of the covariance's norm, whose gradient has none at zero


class HPMNState(NamedTuple):
    """All that is kept of a stream."""

    layers: Float[Tensor, "b y h"]  # s_1 .. s_D
    clock: Int[Tensor, " b"]  # items read, modulo the interval of the slowest layer


def covariance(layers: Float[Tensor, "b y h"]) -> Float[Tensor, ""]:
    """How much the layers say the same, as a mean over streams.

    C_ij = sum_h (s_i - mean s_i)(s_j - mean s_j) / h     |C - diag(C)|_F
    """
    centred = layers - layers.mean(dim=-1, keepdim=True)
    products = centred @ centred.mT / layers.shape[-1]
    others = products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
    return (others.square().sum(dim=(1, 2)) + EPSILON).sqrt().mean()


class HPMN(nn.Module):
    """HPMN as a `Memorizer`.

    s_1 = GRU_1(x_t, s_1) at every item     s_j = GRU_j(s_{j-1}, s_j) at every period^(j-1)-th item, else unchanged

    On XLong its authors took five layers of 32 numbers with a period of 2, and items of 16 numbers.
    """

    def __init__(
        self,
        *,
        item_dim: int,
        num_slots: int,
        num_layers: int = 10,
        period: int = 2,
        covariance_weight: float = 0.025,
    ) -> None:
        super().__init__()
        if num_slots % num_layers:
            raise BadInput(
                f"{num_slots} slots cannot be shared by {num_layers} layers; choose a multiple of {num_layers}."
            )
        if period < 2:
            raise BadInput(f"A period of {period} makes no layer slower than another; choose 2 or more.")
        self.num_slots, self.item_dim, self.period = num_slots, item_dim, period
        self.covariance_weight = covariance_weight
        width = num_slots // num_layers * item_dim
        self.layers = nn.ModuleList(
            nn.GRU(width if below else item_dim, width, batch_first=True) for below in range(num_layers)
        )
        self.mark = nn.Parameter(0.1 * torch.randn(num_slots, item_dim))

    def initial_state(self, batch_size: int) -> HPMNState:
        """Nothing read: every layer is zero."""
        layers = self.mark.new_zeros(batch_size, len(self.layers), self.num_slots // len(self.layers) * self.item_dim)
        return HPMNState(layers, torch.zeros(batch_size, dtype=torch.long, device=layers.device))

    def memory(self, state: HPMNState) -> Float[Tensor, "b k d"]:
        """All layers' states, in rows as wide as an item."""
        return self.read_out(state.layers)

    def read_out(self, layers: Float[Tensor, "*b y h"]) -> Float[Tensor, "*b k d"]:
        """K slots, each with the mark of its place."""
        return layers.flatten(-2).unflatten(-1, (self.num_slots, self.item_dim)) + self.mark

    def write(self, state: HPMNState, segment: Segment) -> HPMNState:
        """The layers after the segment's real items."""
        rows = torch.arange(len(segment.items), device=segment.items.device)[:, None]
        stream = EmbeddedStream(*segment, rows, torch.ones_like(rows, dtype=torch.bool), in_turn=True)
        return cast(HPMNState, self.write_stream(state, stream).state)

    def write_stream(self, state: HPMNState, stream: EmbeddedStream) -> Trace:
        """One layer after the other, each over the whole stream."""
        packed = pack(stream.item_mask, stream.order, stream.segment_mask, stream.most_items)
        table = without_padding(stream.items, stream.item_mask).flatten(0, 1)
        items = table.index_select(0, packed.rows.flatten()).unflatten(0, packed.rows.shape)
        # a state is rounded again at every update, so the recurrence has at least 32 bits
        with torch.autocast(items.device.type, enabled=False):
            along = self.climb(state, at_least_float32(items), packed.read)  # [b, t+1, y, h]
        loss = covariance(along[:, -1])
        last = HPMNState(along[:, -1], (state.clock + packed.read[:, -1]) % self.interval(len(self.layers) - 1))
        return Trace(
            last,
            self.read_out(along),
            {"covariance": loss.detach()},
            {"covariance": self.covariance_weight * loss},
        )

    def interval(self, layer: int) -> int:
        """Items between two updates of a layer, the lowest of which is layer 0."""
        return self.period**layer

    def climb(
        self, state: HPMNState, items: Float[Tensor, "b l d"], read: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t y h"]:
        """Every layer's state at each of the moments `read`, which count the items read by then."""
        inputs, at_moments, before = items, [], state.clock
        for number, layer in enumerate(self.layers):
            begun = state.clock // self.interval(number)  # updates made before this stream
            first = state.layers[:, number]
            if number:
                # update u comes with the layer beneath at its own update (begun + u) period
                most = -(-(inputs.shape[1] - 1) // self.period)
                update = torch.arange(1, most + 1, device=begun.device)
                index = (begun[:, None] + update) * self.period - before[:, None]
                # what lies past the stream's end is never looked at
                inputs = gather_rows(inputs, index.clamp(max=inputs.shape[1] - 1))
            states, _ = layer(inputs, first[None].contiguous())
            inputs, before = torch.cat([first[:, None], states], dim=1), begun  # [b, 1+u, h]
            at_moments.append(
                gather_rows(inputs, (state.clock[:, None] + read) // self.interval(number) - begun[:, None])
            )
        return torch.stack(at_moments, dim=2)

    def compile_parts(self, backend: str) -> None:
        """Nothing: a GRU over a whole stream has kernels of its own."""
