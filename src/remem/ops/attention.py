"""softmax(q k^T / sqrt(c)) v, where no kernel of ours is the faster one."""

from __future__ import annotations

import math

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from remem.ops import onednn


def attend(
    q: Float[Tensor, "s h i c"],
    k: Float[Tensor, "s h j c"],
    v: Float[Tensor, "s h j c"],
    mask: Bool[Tensor, "#s #h #i j"] | None = None,
) -> Float[Tensor, "s h i c"]:
    """Each query attends to the keys that the mask allows, of which there is at least one."""
    if not onednn.taken():
        return F.scaled_dot_product_attention(q, k, v, mask)
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1) @ v
