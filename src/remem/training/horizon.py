"""How long a trained memory lasts: what it still knows after ever more segments, also more than it was trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from remem.bundle import Bundle, load_bundle
from remem.data import synthetic, whereabouts
from remem.data.codec import TextCodec
from remem.data.dataset import Split
from remem.errors import BadInput
from remem.settings.tasks import BabiTask, SyntheticTask
from remem.tasks.base import plain
from remem.training.evaluate import evaluate
from remem.training.record import code_version, now
from remem.training.record import whereabouts as device_facts


def measure(
    model: Path,
    beyond: Sequence[int],
    *,
    streams: int = 200,
    batch_size: int = 32,
    device: torch.device | None = None,
    heard: Callable[[int, float], None] = lambda beyond, share: None,
) -> dict[str, Any]:
    """Share of right answers after each of so many segments, on streams that were made for it.

    Args:
        beyond: segments read between the evidence and the question, one measurement each.
        heard: is told each measurement, in percent, as soon as it is made.
    """
    if min(beyond, default=-1) < 0 or streams < 1 or batch_size < 1:
        raise BadInput(
            f"Segments {', '.join(map(str, beyond)) or 'none'}, {streams} streams, {batch_size} at a time: "
            "give segments of 0 or more, and at least one stream."
        )
    where = device or torch.device("cpu")
    started, code, bundle = time.monotonic(), code_version(), load_bundle(model)
    network = bundle.model.to(where)
    points, prints = [], {}
    for count in sorted(set(beyond)):
        split = streams_beyond(bundle, count, streams)
        tally = evaluate(network, split.to(where), batch_size=batch_size)
        points.append([count, plain(sum(right for right, _ in tally.parts.values())), tally.questions])
        prints[str(count)] = split.fingerprint()
        heard(count, tally.accuracy)
    run, facts = bundle.run, device_facts(where)
    return {
        "task": run.task.name,
        "method": run.method,
        "seed": run.seed,
        "made": now(),
        "code": code,
        "versions": facts["versions"],
        "device": facts["device"],
        "model": {"fingerprint": bundle.fingerprint},
        "data": {"fingerprint": prints},
        "beyond": points,
        "wall_seconds": round(time.monotonic() - started, 1),
    }


def streams_beyond(bundle: Bundle, beyond: int, count: int) -> Split:
    """Streams a model can be asked about, with so many segments between the evidence and the question."""
    task, codec = bundle.run.task, bundle.codec
    if isinstance(task, SyntheticTask):
        return synthetic.split_beyond(task, beyond, count)
    if isinstance(task, BabiTask) and isinstance(codec, TextCodec):
        return whereabouts.split_beyond(codec, beyond, count)
    raise BadInput(f"Streams of any length are made for the synthetic task and bAbI; this model is of {task.name}.")
