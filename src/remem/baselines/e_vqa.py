"""E-VQA: Yu et al., ActivityNet-QA: A Dataset for Understanding Complex Web Videos via Question Answering, AAAI 2019,
after Antol et al., VQA: Visual Question Answering, ICCV 2015.

One network reads the video, another the question, and the product of both is classified:

    v = last cell of LSTM(f_1..f_20)     z = tanh(W_v v) * tanh(W_q q)     scores = W z

Changed for the shared harness: frames come through the embedding of all methods, and positions are means of their share
of the frames, where the original takes 20 evenly spread ones; its LSTM is as wide as a frame's 4,096 features, ours as
the model; q is the bi-GRU's of Appendix A, not an LSTM's last cell. Dropout on z is ours; the L2 penalty is left to the
optimiser.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from remem.baselines.reading import VideoReasoner


class EVQA(VideoReasoner):
    """T(X, Q) from the last state of the video and the question."""

    def __init__(self, *, item_dim: int, model_dim: int, **ends: Any) -> None:
        super().__init__(**ends)
        self.lstm = nn.LSTM(item_dim, model_dim, batch_first=True)
        self.from_video = nn.Linear(model_dim, model_dim)  # W_v
        self.from_question = nn.Linear(model_dim, model_dim)  # W_q

    def reason(self, video: Float[Tensor, "b v c d"], question: Float[Tensor, "b q m"]) -> Float[Tensor, "b q m"]:
        """z of every question."""
        _, (_, cell) = self.lstm(video.flatten(0, 1))
        summary = cell[-1].unflatten(0, video.shape[:2])  # [b, v, m]
        return torch.tanh(self.from_video(summary)) * torch.tanh(self.from_question(question))
