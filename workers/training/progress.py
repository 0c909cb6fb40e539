"""Progress of training on a terminal, and in lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from workers.training.report import Report


class Bars(Report):
    """A bar a stage on a terminal, a line a stage elsewhere."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total}"))
        console = Console(stderr=True)
        self._bars = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
        self._is_terminal = console.is_terminal
        self._task: TaskID | None = None

    def __enter__(self) -> Bars:
        if self._is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def stage(self, name: str, total: int) -> None:
        if self._is_terminal:
            self._task = self._bars.add_task(name, total=total or None)
        else:
            print(f"kadence: {name}" + (f" ({total})" if total else ""), file=sys.stderr, flush=True)

    def advance(self, by: int, text: str = "") -> None:
        if self._task is not None:
            self._bars.advance(self._task, by)
            if text:
                self._bars.update(self._task, description=text)
