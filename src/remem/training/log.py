"""What a person watches while a run or a test goes on: a bar, lines where there is no terminal, TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

LINE_SECONDS = 60.0  # how often a line tells how far a run is, where there is no bar


class _Shortened(TextColumn):
    """Text that gives way where the terminal is narrow: it loses its end, and stays on one line."""

    def __init__(self, text: str) -> None:
        super().__init__(text, markup=False, table_column=Column())

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(rate(task.speed, self.unit) if task.speed else "", style="progress.data.speed")


def rate(speed: float, unit: str = "step") -> str:
    """Steps a second, or seconds a step of those that take longer than one."""
    return f"{speed:.1f} {unit}s/s" if speed >= 1 else f"{1 / speed:.1f} s/{unit}"


class StageLog:
    """Progress of one training stage, or of a test."""

    def __init__(
        self,
        title: str,
        *,
        total: int,
        start: int = 0,
        folder: Path | None = None,
        quiet: bool = False,
        unit: str = "step",
    ) -> None:
        self.title, self.unit = title, unit
        # a title like rm[model.reasoner.dropout=0.1] is no style of Rich's
        self.console = Console(quiet=quiet, stderr=True, markup=False)
        columns = (
            _Shortened("{task.description}"),
            BarColumn(bar_width=20),
            # how far it is and how long it takes are told whole, whatever the width
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            _Rate(unit),
            TextColumn("left"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            _Shortened("{task.fields[note]}"),
        )
        self.bar = Progress(*columns, console=self.console, disable=quiet or not self.console.is_terminal)
        self.task = self.bar.add_task(title, total=total, completed=start, note="")
        self._loss = self._valid = ""
        self._total, self._told = total, (start, time.monotonic())
        self._writer = _tensorboard(folder)

    def __enter__(self) -> StageLog:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self._writer is not None:
            self._writer.close()

    def step(self, step: int) -> None:
        """One more step is done."""
        self.bar.update(self.task, completed=step)
        before, since = self._told
        seconds = time.monotonic() - since
        if self.bar.disable and seconds >= LINE_SECONDS:
            speed, self._told = (step - before) / seconds, (step, since + seconds)
            left = timedelta(seconds=round((self._total - step) / speed))
            self._line(f"{step} of {self._total}", self._loss, rate(speed, self.unit), f"{left} left")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Training figures, every so often."""
        self._loss = f"loss {values['loss']:.3f}"
        self._show()
        self._write("train", step, values)

    def validation(self, step: int, values: Mapping[str, float], *, best: bool) -> None:
        """Validation figures; without a terminal this is the line that tells how the run goes."""
        shown = {k: v for k, v in values.items() if not k.startswith("qa")}
        self._valid = " ".join(f"{name} {value:.2f}" for name, value in shown.items())
        self._show()
        self._write("valid", step, values)
        if self.bar.disable:
            self._line(f"{step}", self._loss, f"valid {self._valid}", "(best)" if best else "")

    def note(self, text: str) -> None:
        """A sentence above the bar."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def _line(self, *parts: str) -> None:
        """One line, however long, for whoever reads a log."""
        told = "  ".join(filter(None, parts))
        self.console.print(f"{self.title}  {self.unit} {told}", highlight=False, soft_wrap=True)

    def _show(self) -> None:
        self.bar.update(self.task, note=f"{self._loss}  {self._valid}")

    def _write(self, group: str, step: int, values: Mapping[str, float]) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{group}/{name}", value, step)


def _tensorboard(folder: Path | None) -> Any:
    """A TensorBoard writer, where the extra is installed."""
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
