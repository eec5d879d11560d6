"""From a task's settings to the task."""

from __future__ import annotations

from remem.data.codec import ClickCodec, Codec, FrameCodec, PassageCodec, TextCodec
from remem.settings import tasks as settings_of
from remem.settings.bounds import refuse_nonsense
from remem.tasks.activitynetqa import activitynetqa_task
from remem.tasks.babi import babi_task
from remem.tasks.base import Task
from remem.tasks.clicks import click_task
from remem.tasks.narrativeqa import narrativeqa_task
from remem.tasks.synthetic import synthetic_task


def load_task(settings: settings_of.Task, codec: Codec | None = None) -> Task:
    """The task; a trained model passes its codec, so that words keep their numbers."""
    refuse_nonsense(settings, "task")
    match settings:
        case settings_of.BabiTask():
            return babi_task(settings, codec if isinstance(codec, TextCodec) else None)
        case settings_of.NarrativeQATask():
            return narrativeqa_task(settings, codec if isinstance(codec, PassageCodec) else None)
        case settings_of.ActivityNetQATask():
            return activitynetqa_task(settings, codec if isinstance(codec, FrameCodec) else None)
        case settings_of.ClickTask():
            return click_task(settings, codec if isinstance(codec, ClickCodec) else None)
        case settings_of.SyntheticTask():
            return synthetic_task(settings)
