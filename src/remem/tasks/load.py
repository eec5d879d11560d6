"""From a task's settings to the task."""

from __future__ import annotations

from remem.data.codec import Codec, TextCodec
from remem.settings.tasks import BabiTask, SyntheticTask
from remem.tasks.babi import babi_task
from remem.tasks.base import Task
from remem.tasks.synthetic import synthetic_task


def load_task(settings: SyntheticTask | BabiTask, codec: Codec | None = None) -> Task:
    """The task; a trained model passes its codec, so that words keep their numbers."""
    if isinstance(settings, BabiTask):
        return babi_task(settings, codec if isinstance(codec, TextCodec) else None)
    return synthetic_task(settings)
