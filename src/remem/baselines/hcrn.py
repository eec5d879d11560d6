"""HCRN: Le et al., Hierarchical Conditional Relation Networks for Video Question Answering, CVPR 2020.

A relation unit makes of n objects and a condition c an object for each size k from n - 1 down to 2:

    g = mean of k objects, drawn at random     r_k = ELU(W_k [g; c]), gated: ELU(W_k [g; c]) * sigma(U_k [g; c])

Units are stacked twice: over the frames of a clip, on the condition of the clip's motion and then (gated) of the
question; and over the clips of the video, on the condition of the video's motion and then (gated) of the question. Of 8
clips of 16 frames 4 x 12 objects o_i are left, read by attention:

    a = softmax_i(w . ELU(W [W_v o_i; W_v o_i * W_q q]))     reason = Norm(ELU(W [sum_i a_i o_i; W q]))

Changed for the shared harness: a frame's one vector takes the place of the appearance, and a convolution over three
frames, averaged over the clip, that of a second network's motion features. The 128 frames are spread over the whole
stream, each the mean of its share. Subsets are drawn anew for each step of training but fixed for answering, where the
original draws them then, too. LayerNorm instead of BatchNorm, as no stream may touch another. Widths are those of all
methods (256 in place of 512), and q is the bi-GRU's of Appendix A.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from remem.baselines.reading import VideoReasoner
from remem.data.random import StableRandom
from remem.errors import BadInput
from remem.ops.precision import at_least_float32


class RelationUnit(nn.Module):
    """CRN: n objects and a condition become n - 2 objects, one for each size of subset."""

    fixed: Tensor

    def __init__(self, *, num_objects: int, object_dim: int, model_dim: int, gated: bool) -> None:
        super().__init__()
        if num_objects < 3:
            raise BadInput(f"A relation unit needs subsets of at least two objects; of {num_objects} there are none.")
        sizes = range(num_objects - 1, 1, -1)
        # for each size the map of the mean g, of the condition c, and a bias; a gate has as many numbers again
        out = model_dim * (2 if gated else 1)
        bound = (6 / (object_dim + 2 * model_dim)) ** 0.5  # Xavier's, of the joint map [g; c]
        self.of_mean = nn.Parameter(torch.empty(len(sizes), object_dim, out).uniform_(-bound, bound))
        self.of_condition = nn.Parameter(torch.empty(len(sizes), model_dim, out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(len(sizes), out))
        self.gated = gated
        drawn = [StableRandom("hcrn", num_objects, k).permutation(num_objects) < k for k in sizes]
        self.register_buffer("fixed", torch.stack([torch.as_tensor(row) for row in drawn]), persistent=False)

    def forward(self, objects: Float[Tensor, "*o n d"], condition: Float[Tensor, "*c m"]) -> Float[Tensor, "*r k m"]:
        """r_k of all sizes; objects and condition may broadcast against each other."""
        subsets = self._subsets()
        means = (subsets / subsets.sum(dim=1, keepdim=True)).to(objects.dtype) @ objects  # g [*o, k, d]
        joint = (
            torch.einsum("...kd,kde->...ke", means, self.of_mean)
            + torch.einsum("...c,kce->...ke", condition, self.of_condition)
            + self.bias
        )
        if not self.gated:
            return F.elu(joint)
        value, gate = joint.chunk(2, dim=-1)
        return F.elu(value) * gate.sigmoid()

    def _subsets(self) -> Tensor:
        """Which objects are in the subset of each size [k, n]."""
        if not self.training:
            return self.fixed
        places = torch.rand(self.fixed.shape, device=self.fixed.device).argsort(dim=1)
        return places < self.fixed.sum(dim=1, keepdim=True)


class HCRN(VideoReasoner):
    """T(X, Q) by relations of frames and of clips."""

    def __init__(self, *, item_dim: int, model_dim: int, num_clips: int, clip_len: int, **ends: Any) -> None:
        super().__init__(num_positions=num_clips * clip_len, **ends)
        if min(num_clips, clip_len) < 5:
            raise BadInput(
                f"Two relation units take two objects each away, so HCRN needs at least 5 clips of 5 frames; "
                f"{num_clips} of {clip_len} were given."
            )
        self.num_clips = num_clips
        m = model_dim
        self.motion = nn.Conv1d(item_dim, m, kernel_size=3, padding=1)
        self.video_motion = nn.LSTM(m, m, batch_first=True)
        self.frames_by_motion = RelationUnit(num_objects=clip_len, object_dim=item_dim, model_dim=m, gated=False)
        self.frames_by_question = RelationUnit(num_objects=clip_len - 2, object_dim=m, model_dim=m, gated=True)
        self.clips_by_motion = RelationUnit(num_objects=num_clips, object_dim=m, model_dim=m, gated=False)
        self.clips_by_question = RelationUnit(num_objects=num_clips - 2, object_dim=m, model_dim=m, gated=True)
        self.object_map = nn.Linear(m, m, bias=False)  # W_v
        self.question_map = nn.Linear(m, m, bias=False)  # W_q
        self.joint = nn.Linear(2 * m, m)
        self.score = nn.Linear(m, 1, bias=False)  # w
        self.question_out = nn.Linear(m, m)
        self.out = nn.Linear(2 * m, m)
        self.norm = nn.LayerNorm(m)

    def reason(self, video: Float[Tensor, "b v c d"], question: Float[Tensor, "b q m"]) -> Float[Tensor, "b q m"]:
        """The reason of every question."""
        question = self.dropout(question)
        found = self._attend(self.dropout(self.relate(video, question)), question)
        both = torch.cat([found, self.question_out(question)], dim=-1)
        return self.norm(F.elu(self.out(self.dropout(both))))

    def relate(self, video: Float[Tensor, "b v c d"], question: Float[Tensor, "b q m"]) -> Float[Tensor, "b q o m"]:
        """The objects that are left of a video for each question."""
        clips = video.unflatten(2, (self.num_clips, -1))  # [b, v, clips, frames, d]
        motion = self._motion(clips)  # [b, v, clips, m]
        _, (whole, _) = self.video_motion(motion.flatten(0, 1))
        video_motion = whole[-1].unflatten(0, motion.shape[:2])  # [b, v, m]
        # each view is shared by all its questions, so the question comes in by broadcasting
        frames = self.frames_by_question(self.frames_by_motion(clips, motion), question[:, :, None])
        objects = frames.transpose(2, 3)  # [b, q, frames - 4, clips, m]: clips are the objects now
        relations = self.clips_by_motion(objects, video_motion[:, :, None])
        return self.clips_by_question(relations, question[:, :, None]).flatten(2, 3)

    def _motion(self, clips: Float[Tensor, "b v k n d"]) -> Float[Tensor, "b v k m"]:
        """What moves in a clip."""
        moving = F.elu(self.motion(clips.flatten(0, 2).mT))  # [b v k, m, n]
        return moving.mean(dim=-1).unflatten(0, clips.shape[:3])

    def _attend(self, objects: Float[Tensor, "b q o m"], question: Float[Tensor, "b q m"]) -> Float[Tensor, "b q m"]:
        """The objects' mean, weighted by the question."""
        mapped = self.object_map(objects)
        both = torch.cat([mapped, mapped * self.question_map(question)[:, :, None]], dim=-1)
        weights = at_least_float32(self.score(F.elu(self.joint(both))).squeeze(-1)).softmax(dim=-1)  # [b, q, o]
        return (weights.to(objects.dtype)[..., None, :] @ objects).squeeze(-2)
