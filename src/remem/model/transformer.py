"""Transformer layers (Vaswani et al., 2017) for the segment encoder and the rehearsal decoder.

Ours rather than `torch.nn.TransformerEncoderLayer`: that one switches to another kernel outside training, whose results
differ in the last bits and which refuses some masks, while a memory must not depend on how it was run. A segment with
no real item must give finite numbers, too.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from remem.errors import BadInput


class PositionCode(nn.Module):
    """Adds to each item where in its segment it stands: sinusoids, or a learned table."""

    table: Tensor

    def __init__(self, *, length: int, dim: int, kind: Literal["sinusoid", "learned"], std: float) -> None:
        super().__init__()
        if kind == "learned":
            self.table = nn.Parameter(torch.randn(length, dim) * std)
        else:
            self.register_buffer("table", sinusoids(length, dim), persistent=False)

    def forward(self, items: Float[Tensor, "... n d"]) -> Float[Tensor, "... n d"]:
        return items + self.table[: items.shape[-2]]


def sinusoids(length: int, dim: int) -> Float[Tensor, "n d"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same."""
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :dim]


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention in several heads; `keys` may be another sequence."""

    def __init__(self, *, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if dim % num_heads:
            raise BadInput(f"A width of {dim} cannot be split into {num_heads} heads; choose a divisor.")
        self.num_heads, self.dropout = num_heads, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(
        self,
        queries: Float[Tensor, "b i d"],
        keys: Float[Tensor, "b j d"],
        key_mask: Bool[Tensor, "b j"] | None = None,
    ) -> Float[Tensor, "b i d"]:
        q, k, v = (self._heads(x) for x in (self.query(queries), self.key(keys), self.value(keys)))
        mask = None if key_mask is None else key_mask[:, None, None, :]
        mixed = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [b, heads, i, d/heads]


def attendable(mask: Bool[Tensor, "*b n"]) -> Bool[Tensor, "*b n"]:
    """The mask itself, but with the first item open where all are padding: a softmax over nothing has no value."""
    first = torch.zeros_like(mask)
    first[..., 0] = ~mask.any(dim=-1)
    return mask | first


class _FeedForward(nn.Sequential):
    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; residual and LayerNorm after each, as published."""

    def __init__(self, *, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim=dim, num_heads=num_heads, dropout=dropout)
        self.feed_forward = _FeedForward(dim, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        x = self.norms[0](x + self.dropout(self.attention(x, x, mask)))
        return self.norms[1](x + self.dropout(self.feed_forward(x)))


class DecoderLayer(nn.Module):
    """Self-attention over each fragment without future masking, attention to the memory, then feed-forward."""

    def __init__(self, *, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim=dim, num_heads=num_heads, dropout=dropout)
        self.recall = MultiHeadAttention(dim=dim, num_heads=num_heads, dropout=dropout)
        self.feed_forward = _FeedForward(dim, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b f n d"], mask: Bool[Tensor, "b f n"], memory: Float[Tensor, "b k d"]
    ) -> Float[Tensor, "b f n d"]:
        own, own_mask = x.flatten(0, 1), mask.flatten(0, 1)
        x = self.norms[0](x + self.dropout(self.attention(own, own, own_mask).view_as(x)))
        # all fragments of a stream ask the same memory, so its keys and values are computed once
        x = self.norms[1](x + self.dropout(self.recall(x.flatten(1, 2), memory).view_as(x)))
        return self.norms[2](x + self.dropout(self.feed_forward(x)))


def scale_of(dim: int) -> float:
    """1 / sqrt(d): brings an inner product of two unit-variance vectors to unit variance."""
    return 1.0 / math.sqrt(dim)
