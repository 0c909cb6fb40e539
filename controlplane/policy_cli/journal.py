"""`kadence policy replay`: whether the decisions on record come out again from what is on record."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress

from controlplane.policy_cli.common import BAD, GOOD, WRONG_USE, AsJson, stop
from controlplane.policy_cli.records import Config, DatabaseUrl, ledger

if TYPE_CHECKING:
    import sqlalchemy as sa

    from controlplane.replay import Difference
    from controlplane.store.time_range import TimeRange

T = TypeVar("T")

SHOWN = 20
"""Differences that are shown for one controller; all are counted."""

Since = Annotated[str, typer.Option(help="Start: a duration before now (7d, 24h, 90m) or a UTC time.")]
Until = Annotated[str | None, typer.Option(help="End, likewise; default now.")]


def replay(
    since: Since = "24h",
    until: Until = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Replay the journal through the controller's own code and hold the decisions against those on record.

    Exit code 0: all are the same. 1: some differ, or a controller's beginning is no longer on record.
    """
    from controlplane.store.recorded import epochs
    from controlplane.store.time_range import iso

    engine, range = ledger(config, database_url, as_json), moments(since, until, as_json)
    found = [_controller(engine, epoch, first, last, range) for epoch, first, last in epochs(engine, range)]
    ok = all(each["exact"] for each in found)
    if as_json:
        typer.echo(json.dumps({"ok": ok, "controllers": found}))
        raise typer.Exit(GOOD if ok else BAD)
    if not found:
        typer.echo("no controller ticked in this range")
    for each in found:
        what = f"controller of {iso(each['epoch'] / 1e9)}: "
        if each["problem"]:
            typer.echo(f"{what}{each['problem']}")
            continue
        same = "all as on record" if each["exact"] else f"{each['differences']} differ"
        typer.echo(f"{what}{each['decisions']} decisions in {each['ticks']} ticks, {same}")
        for line in each["shown"]:
            typer.echo(f"  {line}")
    raise typer.Exit(GOOD if ok else BAD)


COMMANDS = {"replay": replay}


def moments(since: str, until: str | None, as_json: bool) -> TimeRange:
    """The range that the flags name, or the end of the command."""
    from controlplane.store.time_range import TimeRange, iso, parse_moment

    now, found = time.time(), []
    for flag, text in (("--since", since), ("--until", until)):
        try:
            found.append(now if text is None else parse_moment(text, now))
        except ValueError as error:
            stop(f"{flag}: {error}", as_json, WRONG_USE)
    if found[0] >= found[1]:
        stop(f"--since: {iso(found[0])} is not before the end, {iso(found[1])}", as_json, WRONG_USE)
    return TimeRange(*found)


def shown(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """The items, with a progress bar on a terminal's stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from items
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(task)


def _controller(engine: sa.Engine, epoch: int, first: float, last: float, range: TimeRange) -> dict[str, Any]:
    """One controller from its beginning, its decisions in the range held against those on record."""
    from controlplane.policy import PolicyError
    from controlplane.replay import Orders, ReplayError, compare
    from controlplane.replay import replay as again
    from controlplane.store.policies import rollouts
    from controlplane.store.recorded import applied_policies, count_ticks, decisions, events, ticks
    from controlplane.store.time_range import TimeRange

    # Up to its last tick of now: it may be running, and the decisions after that are another's.
    end = min(range.end, math.nextafter(last, math.inf))
    whole = TimeRange(first, end)
    total = count_ticks(engine, epoch, whole)
    said: dict[str, Any] = {"epoch": epoch, "ticks": total, "decisions": 0, "differences": 0, "shown": []}
    walk = shown(ticks(engine, epoch, whole), "replaying", total)
    orders = Orders(applied_policies(engine, range.end), rollouts(engine, limit=100_000), events(engine, epoch))
    try:
        replayed = [row for row in again(walk, orders) if row.at >= range.start]
    except (ReplayError, PolicyError) as error:
        return {**said, "exact": False, "problem": str(error).splitlines()[0]}
    stored = decisions(engine, TimeRange(max(range.start, first), end))
    differences = compare(stored, replayed)
    return {
        **said,
        "decisions": len(stored),
        "differences": len(differences),
        "shown": [_line(each) for each in differences[:SHOWN]],
        "exact": not differences,
        "problem": None,
    }


def _line(difference: Difference) -> str:
    from controlplane.store.time_range import iso

    return f"{iso(difference.at)} {difference.cohort} at load {difference.load_bucket}: {difference.sentence}"
