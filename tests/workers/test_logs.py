import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import workers.logs
from controlplane.settings import Settings
from workers.backend import WorkerError
from workers.logs import configure_logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Logging is the process': what a test configures must not outlive it."""
    root = logging.getLogger()
    before, config = list(root.handlers), structlog.get_config()
    levels = {name: logging.getLogger(name).level for name in workers.logs.OURS}
    yield
    for handler in [h for h in root.handlers if h not in before]:
        root.removeHandler(handler)
        handler.close()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    structlog.configure(**config)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def configured(tmp_path: Path, **changes: Any) -> Path:
    return configure_logs(Settings(home=tmp_path, **changes), "endpoint")


def test_a_line_is_json_with_what_it_is_about(tmp_path: Path) -> None:
    path = configured(tmp_path)
    structlog.get_logger("workers.api").info("request", status=200, cohort="code")
    (line,) = lines(path)
    assert path == tmp_path / "logs" / "kadence.log"
    assert line["timestamp"].endswith("Z")
    assert {**line, "timestamp": "", "pid": 0} == {
        "event": "request", "status": 200, "cohort": "code", "level": "info", "logger": "workers.api",
        "component": "endpoint", "pid": 0, "timestamp": "",
    }  # fmt: skip


def test_lines_of_the_standard_logging_module_are_the_same(tmp_path: Path) -> None:
    path = configured(tmp_path)
    logging.getLogger("controlplane.x").warning("request %s failed", "r1")
    (line,) = lines(path)
    assert (line["event"], line["level"], line["logger"]) == ("request r1 failed", "warning", "controlplane.x")


def test_the_level_is_obeyed_and_libraries_speak_up_only_when_something_is_wrong(tmp_path: Path) -> None:
    path = configured(tmp_path, log_level="warning")
    structlog.get_logger("workers.api").info("no")
    logging.getLogger("httpx").info("no")
    logging.getLogger("httpx").warning("yes")
    assert [line["event"] for line in lines(path)] == ["yes"]


def test_a_logger_that_was_used_before_follows_the_configuration_in_force(tmp_path: Path) -> None:
    log = structlog.get_logger("workers.api")
    configured(tmp_path)
    log.info("first")
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as captured:
        log.info("second")
    assert [line["event"] for line in captured] == ["second"]


def test_a_line_for_people_is_not_json(tmp_path: Path) -> None:
    path = configured(tmp_path, log_format="console")
    structlog.get_logger("workers.api").info("request", status=200)
    assert "status=200" in path.read_text()
    assert not path.read_text().startswith("{")


def fail(error: Exception) -> None:
    try:
        raise error
    except type(error):
        structlog.get_logger("workers.api").exception("failed")


def test_an_exception_that_may_quote_a_client_keeps_its_type_and_place_only(tmp_path: Path) -> None:
    path = configured(tmp_path)
    fail(ValueError("could not read CANARY"))
    (line,) = lines(path)
    assert line["error"] == "ValueError"
    assert line["trace"][0].startswith("workers/test_logs.py:")
    assert "CANARY" not in path.read_text()


def test_our_own_exceptions_keep_their_message(tmp_path: Path) -> None:
    path = configured(tmp_path)
    fail(WorkerError("the worker went away"))
    assert lines(path)[0]["error"] == "WorkerError: the worker went away"


def test_at_level_debug_every_exception_has_its_message(tmp_path: Path) -> None:
    path = configured(tmp_path, log_level="debug")
    fail(ValueError("could not read x"))
    assert lines(path)[0]["error"] == "ValueError: could not read x"


def test_a_line_break_of_a_client_makes_no_line_of_its_own(tmp_path: Path) -> None:
    path = configured(tmp_path)
    structlog.get_logger("workers.api").warning("odd", name='x\n{"event": "forged"}\r\n\u2028')
    assert len(lines(path)) == 1


def test_a_full_file_is_put_aside_and_there_are_never_more_than_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.logs, "MOST_BYTES", 1000)
    path = configured(tmp_path)
    for n in range(50):
        structlog.get_logger("workers.api").info("line", n=n)
    kept = [line["n"] for file in (Path(f"{path}.1"), path) for line in lines(file)]
    assert kept == list(range(kept[0], 50))
    assert len(kept) < 20
    assert {file.name for file in path.parent.iterdir()} == {"kadence.log", "kadence.log.1", "kadence.log.lock"}


def test_another_process_that_put_the_file_aside_is_followed(tmp_path: Path) -> None:
    path = configured(tmp_path)
    structlog.get_logger("workers.api").info("before")
    path.rename(f"{path}.1")
    structlog.get_logger("workers.api").info("after")
    assert [line["event"] for line in lines(path)] == ["after"]
