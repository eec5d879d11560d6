"""The smallest task that needs a memory: which of four symbols came first among fifty items.

Two bits, kept over nine more segments. A memory that holds to the contract and still can't learn this has its wires
crossed somewhere.

from remem.checks.recall import check_recall
check_recall(my_memorizer, item_dim=16)
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from remem.model.interface import EmbeddedStream, Memorizer
from remem.model.reasoner import MultiHopReasoner

SYMBOLS, ITEMS, SEGMENT = 4, 50, 5
WANTED = 0.99


class Recall(NamedTuple):
    """How well it was learned, and what that took."""

    accuracy: float
    steps: int
    seconds: float


class _Recaller(nn.Module):
    """Embedding, the memory, the reasoner that all methods share, and a head."""

    def __init__(self, memorizer: Memorizer, item_dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, item_dim)
        self.memorizer = memorizer
        self.query = nn.Parameter(torch.randn(item_dim))
        self.reasoner = MultiHopReasoner(
            item_dim=item_dim, model_dim=item_dim, num_hops=2, score_gain=4.0, read_norm=True
        )
        self.head = nn.Linear(item_dim, SYMBOLS)

    def forward(self, symbols: Int[Tensor, "b i"]) -> tuple[Float[Tensor, "b c"], Float[Tensor, ""]]:
        b, segments = len(symbols), ITEMS // SEGMENT
        ids = symbols.view(b * segments, SEGMENT)
        order = torch.arange(b * segments, device=symbols.device).view(b, segments)
        stream = EmbeddedStream(
            self.embed(ids), torch.ones_like(ids, dtype=torch.bool), order, torch.ones_like(order, dtype=torch.bool),
            in_turn=True, most_items=ITEMS, ids=ids,
        )  # fmt: skip
        trace = self.memorizer.write_stream(self.memorizer.initial_state(b), stream)
        reason, _ = self.reasoner(trace.memories[:, -1], self.query.expand(b, -1))
        return self.head(reason), sum(trace.losses.values(), start=reason.new_zeros(()))


def learn_recall(
    memorizer: Memorizer,
    item_dim: int,
    *,
    learning_rate: float = 3e-3,
    batch_size: int = 64,
    most_steps: int = 3000,
    most_seconds: float = 120.0,
    seed: int = 0,
) -> Recall:
    """Train until fresh streams are recalled, or processor time or steps run out; tested on streams never seen.

    On one thread: at this size several would only wait for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _learn(memorizer, item_dim, learning_rate, batch_size, most_steps, most_seconds, seed)
    finally:
        torch.set_num_threads(threads)


def _learn(
    memorizer: Memorizer,
    item_dim: int,
    learning_rate: float,
    batch_size: int,
    most_steps: int,
    most_seconds: float,
    seed: int,
) -> Recall:
    torch.manual_seed(seed)
    model = _Recaller(memorizer, item_dim)
    device = next((p.device for p in model.memorizer.parameters()), torch.device("cpu"))  # type: ignore[attr-defined]
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    started, step, accuracy = time.process_time(), 0, 0.0
    while accuracy <= WANTED and step < most_steps and time.process_time() - started < most_seconds:
        for _ in range(50):
            symbols = torch.randint(SYMBOLS, (batch_size, ITEMS), device=device)
            scores, own_losses = model(symbols)
            loss = nn.functional.cross_entropy(scores, symbols[:, 0]) + own_losses
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            step += 1
        accuracy = _accuracy(model, device)
    return Recall(accuracy, step, time.process_time() - started)


@torch.no_grad()
def _accuracy(model: _Recaller, device: torch.device) -> float:
    model.eval()
    symbols = torch.randint(SYMBOLS, (2000, ITEMS), device=device)
    right = model(symbols)[0].argmax(dim=-1) == symbols[:, 0]
    model.train()
    return float(right.float().mean())


def check_recall(memorizer: Memorizer, item_dim: int, *, learning_rate: float = 3e-3, seed: int = 0) -> Recall:
    """The memory learns the two bits in under two minutes on one core; its own weights are trained in doing so."""
    learned = learn_recall(memorizer, item_dim, learning_rate=learning_rate, seed=seed)
    assert learned.accuracy > WANTED, (
        f"After {learned.steps} steps and {learned.seconds:.0f} s the first of {ITEMS} items was recalled in "
        f"{100 * learned.accuracy:.1f} % of the streams; expected more than {100 * WANTED:.0f} %, and chance is "
        f"{100 / SYMBOLS:.0f} %."
    )
    return learned
