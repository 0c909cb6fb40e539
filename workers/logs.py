"""Structured logs: each process of Kadence adds lines to one file, never with text of prompts, answers or secrets.

What a client wrote may be in the message of an exception that is not ours (a parser quotes what it could not read), so
that of those only type and place are kept, unless the level is debug.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import logging.handlers
import os
import sys
import traceback
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Literal

import structlog

from controlplane.settings import Settings

LogFormat = Literal["json", "console"]
OURS = ("controlplane", "workers", "kernels")
MOST_BYTES = 32 * 1024 * 1024
"""Size at which a log file is put aside, as the one before it; there are never more than two."""
FOLDER, FILE = "logs", "kadence.log"

_Event = MutableMapping[str, Any]


def configure_logs(settings: Settings, component: str) -> Path:
    """Send this process' log lines to <home>/logs/kadence.log from now on; returns its path.

    Every line has timestamp (UTC), level, component, pid, logger and event, then what the event is about.
    """
    path = settings.home / FOLDER / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    level = getattr(logging, settings.log_level.upper())
    handler = _SharedFile(path, encoding="utf-8")
    handler.setFormatter(_formatter(settings.log_format, component, shows_messages=level <= logging.DEBUG))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _SharedFile)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    if os.environ.get("KADENCE_DEBUG"):  # Ray then shows what its processes print in the terminal of `up` and `serve`
        echo = logging.StreamHandler()
        echo.setFormatter(_formatter("console", component, shows_messages=True))
        root.addHandler(echo)
    for name in OURS:  # of libraries, only what is wrong
        logging.getLogger(name).setLevel(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_FACTS,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return path


def log_to_stderr() -> None:
    """For a command whose result goes to stdout, which would else have the log lines too."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


_FACTS: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _formatter(form: LogFormat, component: str, shows_messages: bool) -> logging.Formatter:
    def place(_: Any, __: str, event: _Event) -> _Event:
        return {**event, "component": component, "pid": os.getpid()}

    render: Any = (
        structlog.processors.JSONRenderer(default=str)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=False)
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_FACTS,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            place,
            _exceptions(shows_messages),
            render,
        ],
    )


def _exceptions(shows_messages: bool) -> Callable[[Any, str, _Event], _Event]:
    """exc_info becomes error (its type, and the message where it is ours) and trace, where it was raised."""

    def process(_: Any, __: str, event: _Event) -> _Event:
        info = event.pop("exc_info", None)
        info = sys.exc_info() if info is True else info
        error = info[1] if isinstance(info, tuple) else info
        if isinstance(error, BaseException):
            event["error"] = said_by(error) if not shows_messages else f"{type(error).__name__}: {error}"
            frames = traceback.extract_tb(error.__traceback__)
            event["trace"] = [f"{_short(f.filename)}:{f.lineno} in {f.name}" for f in frames]
        return event

    return process


def said_by(error: BaseException) -> str:
    """What a log may say of an exception: its type, and its message where that is one of ours."""
    name = type(error).__name__
    is_ours = type(error).__module__.partition(".")[0] in OURS
    return f"{name}: {' '.join(str(error).split())}" if is_ours else name


def _short(filename: str) -> str:
    """The end of a path, from the package on."""
    return "/".join(Path(filename).parts[-2:])


class _SharedFile(logging.handlers.WatchedFileHandler):
    """Appends a line with one write, so that processes can share the file; whoever finds it full puts it aside."""

    def emit(self, record: logging.LogRecord) -> None:
        self._put_aside()
        super().emit(record)

    def _put_aside(self) -> None:
        with contextlib.suppress(OSError):
            if os.stat(self.baseFilename).st_size < MOST_BYTES:
                return
            with open(f"{self.baseFilename}.lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # given back as it is closed
                if os.stat(self.baseFilename).st_size >= MOST_BYTES:  # nobody else has done it meanwhile
                    os.replace(self.baseFilename, f"{self.baseFilename}.1")
