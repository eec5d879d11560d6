"""MIMN: a neural Turing machine that spreads its writes over all slots, with a channel of interest beside each slot.

Pi et al., "Practice on Long Sequential User Behavior Modeling for Click-Through Rate Prediction", KDD 2019.

Changed for the shared harness:

1. The reader is the reasoner that all methods share. A slot of the memory it sees is the slot itself and its channel,
   side by side, mapped to an item's width; the running sums that the authors' own reader adds are not kept.
2. There are K slots (theirs are 4 to 8), as wide as an item.
3. Padding changes nothing. The state is a value, the channels' too, which the authors' program keeps in the cell.
4. What was written to each slot is counted as a share of `horizon` items, and once more items were written the shares
   are scaled to sum to one, so that the count never ends; in shorter streams it is the count. Theirs divides a count of
   at most 400 items by 400 where the controller sees it; streams here have up to 1,000.
5. The writes that are counted are those that are made: theirs shifts and sharpens the counted ones twice. As theirs,
   the loss on the count reaches only the shift and the sharpness.
6. The memory starts at zero, not at random numbers of size 1e-5: the slots are told apart by their keys.
7. The utilisation loss has their weight, 1e-3 over a batch of 256, on a mean over streams.

Left out: the loss on the next behaviour, an option of theirs that is DIEN's (see `remem.baselines.dien`).

Shape letters beside the usual ones: k slots, w slot width, h controller width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.word_by_word import Scalars, WordByWord, mean_over
from remem.model.recurrent import gru_step
from remem.ops.memory_access.reference import LARGEST, unit
from remem.ops.precision import at_least_float32

SHARPNESS = 2.0  # of every softmax over the slots; twice that for a shifted one
LEAST_WEIGHT = 1e-12  # whose logarithm is still taken


class MIMNState(NamedTuple):
    """All that is kept of a stream."""

    slots: Float[Tensor, "b k w"]  # M
    channels: Float[Tensor, "b c w"]  # S; as many as slots, or none
    hidden: Float[Tensor, "b h"]  # of the controller
    read: Float[Tensor, "b w"]  # r
    written: Float[Tensor, "b k"]  # G, as a share of `horizon` items


class Orders(NamedTuple):
    """What the controller orders at one step: p, split and squashed."""

    read_key: Float[Tensor, "b w"]  # k^r
    write_key: Float[Tensor, "b w"]  # k^w
    erase: Float[Tensor, "b w"]  # e
    add: Float[Tensor, "b w"]  # a
    shift: Float[Tensor, "b 3"]  # stay, one on, one back
    read_strength: Float[Tensor, "b 1"]  # beta^r
    write_strength: Float[Tensor, "b 1"]  # beta^w
    sharpness: Float[Tensor, "b 1"]  # g


def rebalance(
    weights: Float[Tensor, "b k"], shift: Float[Tensor, "b 3"], sharpness: Float[Tensor, "b 1"]
) -> Float[Tensor, "b k"]:
    """w~_k = s_0 w_k + s_1 w_{k-1} + s_2 w_{k+1} around the circle of slots; then w~^g, scaled to sum to one."""
    stay, on, back = shift.unbind(dim=-1)
    moved = stay[:, None] * weights + on[:, None] * weights.roll(1, -1) + back[:, None] * weights.roll(-1, -1)
    # a softmax of logarithms is the same as powers divided by their sum, and no power of a small weight is lost
    return (sharpness * moved.clamp(min=LEAST_WEIGHT).log()).softmax(dim=-1)


class MIMNCell(nn.Module):
    """One item: the controller, the read, the write, and the channel of the slot that was read most.

    h = GRU([x; r], h)     p = clip(W [h; sg(G)] + b)     w = softmax(beta (cos(k, Key) + cos(k, M)) / 2)
    r = sum_k w^r_k M_k    M' = M (1 - w^w e^T) + w^w a^T     G' = G + w^w
    S'_j = GRU_c([x; sg(M_j)], S_j) for j = argmax w^r; all others stay
    """

    def __init__(
        self,
        *,
        item_dim: int,
        num_slots: int,
        slot_dim: int,
        controller_dim: int,
        horizon: int,
        utilisation: bool,
        induction: bool,
    ) -> None:
        super().__init__()
        self.num_slots, self.slot_dim, self.horizon = num_slots, slot_dim, horizon
        self.utilisation, self.induction = utilisation, induction
        self.from_item = nn.Linear(item_dim, 3 * controller_dim + (3 * slot_dim if induction else 0))
        self.controller = nn.Linear(controller_dim, 3 * controller_dim)
        self.from_read = nn.Linear(slot_dim, 3 * controller_dim, bias=False)
        self.order = nn.Linear(controller_dim + (num_slots if utilisation else 0), sum(self.sizes()))
        self.keys = nn.Parameter(0.5 * torch.randn(num_slots, slot_dim))
        self.first_read = nn.Parameter(0.1 * torch.randn(slot_dim))
        if induction:
            self.channel = nn.Linear(slot_dim, 3 * slot_dim)
            self.from_slot = nn.Linear(slot_dim, 3 * slot_dim, bias=False)
        self.out = nn.Linear((2 if induction else 1) * slot_dim, item_dim)

    def sizes(self) -> list[int]:
        """How many numbers each order takes."""
        return [*[self.slot_dim] * 4, 3, 1, 1, 1]

    def initial_state(self, batch_size: int) -> MIMNState:
        """Nothing written; what the controller takes for the last read is learned."""
        zeros = self.keys.new_zeros
        slots = (batch_size, self.num_slots, self.slot_dim)
        return MIMNState(
            slots=zeros(slots),
            channels=zeros(slots if self.induction else (batch_size, 0, self.slot_dim)),
            hidden=zeros(batch_size, self.controller.in_features),
            read=torch.tanh(self.first_read).expand(batch_size, -1).contiguous(),
            written=zeros(batch_size, self.num_slots),
        )

    def project(self, items: Float[Tensor, "*s d"]) -> Float[Tensor, "*s g"]:
        """The item's side of both GRUs."""
        return self.from_item(items)

    def slots_of(self, state: MIMNState) -> Float[Tensor, "b k x"]:
        """Each slot, with its channel beside it."""
        return torch.cat([state.slots, state.channels], dim=-1) if self.induction else state.slots

    def read_out(self, slots: Float[Tensor, "*b k x"]) -> Float[Tensor, "*b k d"]:
        """As wide as an item."""
        return at_least_float32(self.out(slots))

    def write_weights_of(self, state: MIMNState) -> Float[Tensor, "b k"]:
        """What has been written to each slot so far."""
        return state.written

    def orders(self, hidden: Float[Tensor, "b h"], written: Float[Tensor, "b k"]) -> Orders:
        """p = clip(W [h; sg(G)] + b), each part in its range."""
        seen = torch.cat([hidden, written.detach()], dim=-1) if self.utilisation else hidden
        parts = self.order(seen).clamp(-LARGEST, LARGEST).split(self.sizes(), dim=-1)
        read_key, write_key, erase, add, shift, read_strength, write_strength, sharpness = parts
        return Orders(
            torch.tanh(read_key),
            torch.tanh(write_key),
            torch.sigmoid(erase),
            torch.tanh(add),
            shift.softmax(dim=-1),
            SHARPNESS * (F.softplus(read_strength) + 1),
            SHARPNESS * (F.softplus(write_strength) + 1),
            2 * SHARPNESS * (F.softplus(sharpness) + 1),
        )

    def address(
        self, slots: Float[Tensor, "b k w"], keys: Float[Tensor, "b i w"], strengths: Float[Tensor, "b i"]
    ) -> Float[Tensor, "b i k"]:
        """w = softmax_k(beta (cos(k, Key_k) + cos(k, M_k)) / 2)."""
        places = unit(torch.tanh(self.keys)) + unit(slots)  # [b, k, w]
        return (0.5 * strengths[..., None] * (unit(keys) @ places.mT)).softmax(dim=-1)

    def forward(self, state: MIMNState, inputs: Float[Tensor, "b g"], real: Bool[Tensor, " b"]) -> MIMNState:
        """The state after one item; where it is padding, the state before."""
        # 32 bits throughout: a step is bound by its number of kernels, and casts would only add to them
        with torch.autocast(inputs.device.type, enabled=False):
            after = self.step(state, at_least_float32(inputs))
        return MIMNState(*(_where(real, new, old) for new, old in zip(after, state, strict=True)))

    def step(self, state: MIMNState, inputs: Float[Tensor, "b g"]) -> MIMNState:
        """The equations above, in their order."""
        for_controller, for_channel = inputs.tensor_split([3 * state.hidden.shape[1]], dim=-1)
        hidden = gru_step(for_controller + self.from_read(state.read), self.controller(state.hidden), state.hidden)
        order = self.orders(hidden, state.written)
        keys = torch.stack([order.read_key, order.write_key], dim=1)
        strengths = torch.cat([order.read_strength, order.write_strength], dim=1)
        reading, writing = self.address(state.slots, keys, strengths).unbind(dim=1)  # [b, k]
        counted = writing
        if self.utilisation:
            # the same weights twice, the second time with a gradient of the shift and the sharpness alone
            counted = rebalance(writing.detach(), order.shift, order.sharpness)
            writing = rebalance(writing, order.shift, order.sharpness)
        read = (reading[:, None] @ state.slots).squeeze(1)
        erased = state.slots * (1 - writing[..., None] * order.erase[:, None])
        return MIMNState(
            slots=erased + writing[..., None] * order.add[:, None],
            channels=self.induce(state, reading, for_channel),
            hidden=hidden,
            read=read,
            written=self.count(state.written, counted),
        )

    def count(self, written: Float[Tensor, "b k"], weights: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        """G' = G + w^w in shares of `horizon` items, which never sum to more than one."""
        shares = written + weights / self.horizon
        return shares / shares.sum(dim=-1, keepdim=True).clamp(min=1.0)

    def induce(
        self, state: MIMNState, reading: Float[Tensor, "b k"], inputs: Float[Tensor, "b x"]
    ) -> Float[Tensor, "b c w"]:
        """The memory induction unit: the channel of the slot that was read most goes on with the item."""
        if not self.induction:
            return state.channels
        places = torch.arange(self.num_slots, device=reading.device)
        chosen = (places == reading.argmax(dim=-1, keepdim=True))[..., None]  # [b, k, 1]
        slot, channel = ((chosen * rows).sum(dim=1) for rows in (state.slots.detach(), state.channels))
        new = gru_step(inputs + self.from_slot(slot), self.channel(channel), channel)
        return torch.where(chosen, new[:, None], state.channels)


class MIMN(WordByWord):
    """MIMN as a `Memorizer`; sizes of the shared harness unless told otherwise.

    Its authors took 4 slots of 32 numbers and a controller of 32.
    """

    cell: MIMNCell

    def __init__(
        self,
        *,
        item_dim: int,
        num_slots: int,
        slot_dim: int | None = None,
        controller_dim: int | None = None,
        horizon: int = 1000,
        induction: bool = True,
        utilisation: bool = True,
        utilisation_weight: float = 1e-3 / 256,
    ) -> None:
        super().__init__(
            MIMNCell(
                item_dim=item_dim,
                num_slots=num_slots,
                slot_dim=slot_dim or item_dim,
                controller_dim=controller_dim or item_dim,
                horizon=horizon,
                utilisation=utilisation,
                induction=induction,
            )
        )
        self.utilisation_weight = utilisation_weight

    def observe(
        self, states: Sequence[Any], real: Bool[Tensor, "l b"], ids: Int[Tensor, "l b"] | None
    ) -> tuple[Scalars, Scalars]:
        """Entropy of single writes and of all together, and the loss that keeps all slots in use."""
        written = torch.stack([state.written.detach() for state in states])  # [l, b, k]
        figures = {"write_entropy": self._write_entropy(written, real), "use_entropy": _entropy(written[-1]).mean()}
        if not self.cell.utilisation:
            return figures, {}
        return figures, {"utilisation": self.utilisation_weight * self.utilisation_loss(states[-1].written)}

    def utilisation_loss(self, written: Float[Tensor, "b k"]) -> Float[Tensor, ""]:
        """mean_k (G_k - mean G)^2 / K, as a mean over streams; G in items."""
        counts = self.cell.horizon * written
        return (counts - counts.mean(dim=-1, keepdim=True)).square().mean() / self.cell.num_slots

    def _write_entropy(self, written: Float[Tensor, "l b k"], real: Bool[Tensor, "l b"]) -> Float[Tensor, ""]:
        """Of the writes after the first: two counts in turn differ by one write."""
        before, after, horizon = written[:-1], written[1:], self.cell.horizon
        scale = (before.sum(dim=-1, keepdim=True) + 1 / horizon).clamp(min=1.0)
        return mean_over(_entropy((scale * after - before).clamp(min=0.0)), real[1:])


def _entropy(weights: Float[Tensor, "*b k"]) -> Float[Tensor, "*b"]:
    shares = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    return torch.special.entr(shares).sum(dim=-1)


def _where(real: Bool[Tensor, " b"], new: Tensor, old: Tensor) -> Tensor:
    return torch.where(real.view(-1, *[1] * (new.ndim - 1)), new, old)
