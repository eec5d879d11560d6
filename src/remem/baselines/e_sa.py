"""E-SA: Yu et al., ActivityNet-QA: A Dataset for Understanding Complex Web Videos via Question Answering, AAAI 2019,
after Yao et al., Describing Videos by Exploiting Temporal Structure, ICCV 2015.

Soft attention over the positions of a video, guided by the question; no network reads them in order:

    V_i = tanh(W_v f_i)     u = tanh(W_q q)     a = softmax_i(u . V_i)     z = u * sum_i a_i V_i     scores = W z

Changed for the shared harness: frames come through the embedding of all methods, and positions are means of their share
of the frames, where the original takes 20 evenly spread ones; q is the bi-GRU's of Appendix A, not an LSTM's last cell.
Dropout on z is ours; the L2 penalty is left to the optimiser.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.baselines.reading import VideoReasoner, by_view
from remem.ops.precision import at_least_float32


class ESA(VideoReasoner):
    """T(X, Q) by one look at the video."""

    def __init__(self, *, item_dim: int, model_dim: int, **ends: Any) -> None:
        super().__init__(**ends)
        self.from_video = nn.Linear(item_dim, model_dim)  # W_v
        self.from_question = nn.Linear(model_dim, model_dim)  # W_q

    def reason(self, video: Float[Tensor, "b v c d"], question: Float[Tensor, "b q m"]) -> Float[Tensor, "b q m"]:
        """z of every question."""
        values = torch.tanh(self.from_video(video))  # [b, v, c, m]
        asked = by_view(torch.tanh(self.from_question(question)), video.shape[1])  # [b, v, p, m]
        weights = at_least_float32(asked @ values.mT).softmax(dim=-1)  # [b, v, p, c]
        return (asked * (weights.to(values.dtype) @ values)).flatten(1, 2)
