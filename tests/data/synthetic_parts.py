"""Sizes of the synthetic task small enough to look at every stream."""

from __future__ import annotations

from dataclasses import replace

from remem.settings.tasks import SyntheticTask

# 22 facts in segments of 5: the last segment is padded; a tenth of the first draws hold a second answer
SMALL = SyntheticTask(
    num_groups=4,
    num_facts=24,
    stream_len=22,
    num_queries=8,
    num_answers=3,
    evidence_len=2,
    samples_per_chain=6,
    eval_samples_per_chain=4,
    segment_len=5,
)
# so few facts that most first draws are refused
CROWDED = [
    replace(SMALL, num_groups=1, num_facts=6, stream_len=8, num_queries=2, evidence_len=1),
    replace(SMALL, num_groups=1, num_facts=6, stream_len=12, num_queries=2, num_answers=5, evidence_len=2),
    replace(SMALL, num_groups=2, num_facts=6, stream_len=13, num_queries=2, num_answers=3, evidence_len=2),
]
