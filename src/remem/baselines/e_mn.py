"""E-MN: Yu et al., ActivityNet-QA: A Dataset for Understanding Complex Web Videos via Question Answering, AAAI 2019,
after Zeng et al., Leveraging Video Descriptions to Learn Video Question Answering, AAAI 2017.

A memory network over the positions of a video, with adjacent hops tied (A_{h+1} maps the values of hop h and the keys
of hop h + 1):

    g_i = (ahead_i + back_i) / 2 of a bi-directional LSTM     u = B q
    p = softmax_i(u . tanh(A_h g_i))     u <- u + sum_i p_i tanh(A_{h+1} g_i)     scores = W u

Changed for the shared harness: frames come through the embedding of all methods, and positions are means of their share
of the frames, where the original takes 20 evenly spread ones; q is the bi-GRU's of Appendix A, not an LSTM's last cell.
Dropout on the last u is ours; the L2 penalty is left to the optimiser.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.baselines.reading import VideoReasoner, by_view
from remem.ops.precision import at_least_float32


class EMN(VideoReasoner):
    """T(X, Q) by several looks at the video."""

    def __init__(self, *, item_dim: int, model_dim: int, num_hops: int, **ends: Any) -> None:
        super().__init__(**ends)
        self.lstm = nn.LSTM(item_dim, model_dim, batch_first=True, bidirectional=True)
        self.first = nn.Linear(model_dim, model_dim)  # B
        self.maps = nn.ModuleList(nn.Linear(model_dim, model_dim) for _ in range(num_hops + 1))  # A_1 .. A_{H+1}

    def reason(self, video: Float[Tensor, "b v c d"], question: Float[Tensor, "b q m"]) -> Float[Tensor, "b q m"]:
        """u after the last hop, for every question."""
        states, _ = self.lstm(video.flatten(0, 1))
        states = states.unflatten(-1, (2, -1)).mean(dim=-2).unflatten(0, video.shape[:2])  # [b, v, c, m]
        mapped = [torch.tanh(each(states)) for each in self.maps]
        asked = by_view(self.first(question), video.shape[1])  # [b, v, p, m]
        for keys, values in pairwise(mapped):
            weights = at_least_float32(asked @ keys.mT).softmax(dim=-1)
            asked = asked + weights.to(values.dtype) @ values
        return asked.flatten(1, 2)
