"""Transformer layers (Vaswani et al., 2017) for the segment encoder and the rehearsal decoder.

Ours rather than `torch.nn.TransformerEncoderLayer`: that one switches to another kernel outside training, whose results
differ in the last bits and which refuses some masks, while a memory must not depend on how it was run. A segment with
no real item must give finite numbers, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from remem.errors import BadInput
from remem.model.interface import gather_rows
from remem.ops.attention import attend
from remem.ops.dropout import Dropout
from remem.ops.feed_forward import feed_forward
from remem.ops.memory_attention import memory_attention
from remem.ops.paths import fast
from remem.ops.segment_attention import native, segment_attention


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
        if items.shape[-2] > len(self.table):
            raise BadInput(
                f"{items.shape[-2]} items were given where {len(self.table)} places are known; cut the stream into "
                "shorter segments, or build the model with a larger segment_len."
            )
        return items + self.table[: items.shape[-2]]


def sinusoids(length: int, dim: int) -> Float[Tensor, "n d"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same."""
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :dim]


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention in several heads, of items to one another or to another sequence.

    With `match` an item attends to others alone, and queries and keys start as the items themselves.
    """

    def __init__(self, *, dim: int, num_heads: int, match: bool = False) -> None:
        super().__init__()
        if dim % num_heads:
            raise BadInput(f"A width of {dim} cannot be split into {num_heads} heads; choose a divisor.")
        self.num_heads, self.match = num_heads, match
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        if match:
            nn.init.eye_(self.query.weight)
            nn.init.eye_(self.key.weight)

    def within(
        self,
        items: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"],
        kept: Callable[[Tensor], Tensor] = lambda mixed: mixed,
    ) -> Float[Tensor, "... d"]:
        """Each item attends to the real items of its own segment; what is not `kept` is not projected."""
        qkv = self._heads(items, self.query, self.key, self.value)
        if self.match:
            q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
            return self.out(kept(attend(q, k, v, of_others(mask)[:, None]).transpose(1, 2).flatten(2)))
        if items.is_cuda and fast():
            return self.out(kept(segment_attention(qkv, mask).flatten(2)))
        if fast() and native.fits(qkv):
            return self.out(kept(native.segment_attention_cpu(qkv, mask).flatten(2)))
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))  # [b, heads, n, d/heads]
        mixed = attend(q, k, v, mask[:, None, None, :])
        return self.out(kept(mixed.transpose(1, 2).flatten(2)))

    def forward(self, queries: Float[Tensor, "b i d"], keys: Float[Tensor, "b j d"]) -> Float[Tensor, "b i d"]:
        """Each query attends to all keys."""
        q, kv = self._heads(queries, self.query).squeeze(2), self._heads(keys, self.key, self.value)
        return self.out(memory_attention(q, kv).flatten(2))

    def _heads(self, x: Tensor, *layers: nn.Linear) -> Tensor:
        """Several projections in one product: [b, i, layers, heads, d/heads]."""
        weight, bias = (
            torch.cat(parts) for parts in zip(*((layer.weight, layer.bias) for layer in layers), strict=True)
        )
        return F.linear(x, weight, bias).unflatten(-1, (len(layers), self.num_heads, -1))


def attendable(mask: Bool[Tensor, "*b n"]) -> Bool[Tensor, "*b n"]:
    """The mask itself, but with the first item open where all are padding: a softmax over nothing has no value."""
    first = torch.zeros_like(mask)
    first[..., 0] = ~mask.any(dim=-1)
    return mask | first


def of_others(mask: Bool[Tensor, "b n"]) -> Bool[Tensor, "b n n"]:
    """Whom each item may look at: every real item but itself, and itself where there is no other."""
    itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    others = mask[:, None, :] & ~itself
    return others | (itself & ~others.any(dim=-1, keepdim=True))


class _FeedForward(nn.Sequential):
    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__(nn.Linear(dim, 4 * dim), nn.ReLU(), Dropout(dropout), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        inner, _, dropout, outer = cast("tuple[nn.Linear, nn.ReLU, Dropout, nn.Linear]", tuple(self))
        drop = dropout.p if self.training else 0.0
        return feed_forward(x, inner.weight, inner.bias, outer.weight, outer.bias, drop)


class _Residual(nn.Module):
    """x + sublayer(x), with LayerNorm after it as published, or before the sub-layer, which deep stacks need."""

    def __init__(self, *, dim: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm, self.dropout, self.pre_norm = nn.LayerNorm(dim), Dropout(dropout), pre_norm

    def forward(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], kept: Callable[[Tensor], Tensor] = lambda x: x
    ) -> Tensor:
        """With `kept`, of a sub-layer that gives some places alone, the same places of x."""
        if self.pre_norm:
            return kept(x) + self.dropout(sublayer(self.norm(x)))
        return self.norm(kept(x) + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(
        self, *, dim: int, num_heads: int, dropout: float, pre_norm: bool = False, match: bool = False
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim=dim, num_heads=num_heads, match=match)
        self.feed_forward = _FeedForward(dim, dropout)
        self.residuals = nn.ModuleList(_Residual(dim=dim, dropout=dropout, pre_norm=pre_norm) for _ in range(2))

    def forward(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        attend, feed = self.residuals
        x = attend(x, lambda y: self.attention.within(y, mask))
        return feed(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention over each fragment without future masking, attention to the memory, then feed-forward."""

    def __init__(self, *, dim: int, num_heads: int, dropout: float, pre_norm: bool = False) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim=dim, num_heads=num_heads)
        self.recall = MultiHeadAttention(dim=dim, num_heads=num_heads)
        self.feed_forward = _FeedForward(dim, dropout)
        self.residuals = nn.ModuleList(_Residual(dim=dim, dropout=dropout, pre_norm=pre_norm) for _ in range(3))

    def forward(
        self, x: Float[Tensor, "b f n d"], mask: Bool[Tensor, "b f n"], memory: Float[Tensor, "b k d"]
    ) -> Float[Tensor, "b f n d"]:
        return self._layer(x, mask, memory, lambda y: y.reshape(len(x), -1, y.shape[-1])).view_as(x)

    def at(
        self,
        x: Float[Tensor, "b f n d"],
        mask: Bool[Tensor, "b f n"],
        memory: Float[Tensor, "b k d"],
        places: Int[Tensor, "b p"],
    ) -> Float[Tensor, "b p d"]:
        """The layer at some places alone, counted over all fragments of a stream: for a last layer that others ignore.

        Every place is still attended to; but what comes after self-attention is done for the places asked for.
        """
        return self._layer(x, mask, memory, lambda y: gather_rows(y.reshape(len(x), -1, y.shape[-1]), places))

    def _layer(self, x: Tensor, mask: Tensor, memory: Tensor, kept: Callable[[Tensor], Tensor]) -> Tensor:
        """All the layer does; `kept` brings the fragments of a stream together, and may leave places out."""
        attend, recall, feed = self.residuals
        x = attend(x, lambda y: self.attention.within(y.flatten(0, 1), mask.flatten(0, 1), kept), kept)
        # all fragments of a stream ask the same memory, so its keys and values are computed once
        x = recall(x, lambda y: self.recall(y, memory))
        return feed(x, self.feed_forward)


def final_norm(dim: int, pre_norm: bool) -> nn.Module:
    """What closes a stack of layers: with the norms moved to the front, its output would be left without one."""
    return nn.LayerNorm(dim) if pre_norm else nn.Identity()


def scale_of(dim: int) -> float:
    """1 / sqrt(d): brings an inner product of two unit-variance vectors to unit variance."""
    return 1.0 / math.sqrt(dim)
