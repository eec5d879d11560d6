"""The truth that the kernels are held to, and what runs where they cannot."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from remem.ops.attention import attend


def reference(q: Float[Tensor, "s i h c"], kv: Float[Tensor, "s j 2 h c"]) -> Float[Tensor, "s i h c"]:
    """out_i = sum_j softmax_j(q_i . k_j / sqrt(c)) v_j, over all rows j of the memory."""
    q, k, v = (x.transpose(1, 2) for x in (q, *kv.unbind(2)))
    return attend(q, k, v).transpose(1, 2)
