"""What the key commands share: options, the ledger, and how a wrong word or a refused change ends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from controlplane.policy_cli.common import WRONG_USE, stop

if TYPE_CHECKING:
    import sqlalchemy as sa

    from controlplane.keys.ring import ApiKey

T = TypeVar("T")

MOST = 10**12
"""Of any limit: a client never reaches it, and no column overflows."""

MOST_NOTE = 500
"""Characters of a note or a reason."""

Name = Annotated[str, typer.Argument(help="Letters, digits and . _ - (up to 64); the policy's match.api_key has it.")]
Why = Annotated[str, typer.Option(help="For the record.")]
OF_BOTH = "Of prompts and of answers together."
AT_ONCE = "Requests at once."


def open_or_make(config: Any, database_url: str | None, as_json: bool) -> sa.Engine:
    """The ledger, made where there is none yet: the first key may come before the first start."""
    from controlplane.settings import SettingsError, load_settings
    from controlplane.store.engine import StoreError
    from controlplane.store.migrate import upgrade
    from controlplane.store.queries import database_state, open_ledger

    try:
        url = load_settings(config, database_url=database_url).database_url
        if database_state(url) in ("missing", "empty"):
            upgrade(url)
        return open_ledger(url)
    except SettingsError as error:
        stop(str(error), as_json, WRONG_USE)
    except StoreError as error:
        stop(str(error), as_json)


def attempt(make: Callable[[], T], as_json: bool) -> T:
    """The result of a change, or the end of the command with why it was refused."""
    from sqlalchemy.exc import DBAPIError

    from controlplane.store.api_keys import ApiKeyError
    from controlplane.store.engine import one_line

    try:
        return make()
    except ApiKeyError as error:
        stop(str(error), as_json)
    except DBAPIError as error:
        stop(one_line(error), as_json)


def seconds(option: str, text: str | None, as_json: bool) -> float | None:
    """Of a duration as it is written; ends the command where it is none."""
    from controlplane.store.time_range import parse_duration

    if text is None:
        return None
    try:
        found = parse_duration(text)
        if found > 100 * 365 * 86400:
            raise ValueError(f"{text!r} is more than 100 years")
        if option == "--expires" and found == 0:
            raise ValueError("a key that is never valid opens nothing")
    except ValueError as error:
        stop(f"{option}: {error}", as_json, WRONG_USE)
    return found


def cohort_warning(engine: sa.Engine, key: ApiKey) -> str | None:
    """Where the policy that was last in force has no such cohort; None also where none was in force yet."""
    from controlplane.store.policies import policy_in_force

    if key.cohort is None:
        return None
    try:
        names = [cohort.name for cohort in policy_in_force(engine).cohorts]
    except ValueError:
        return None
    if key.cohort in names:
        return None
    return (
        f"the policy has no cohort {key.cohort!r} (it has {', '.join(names)}); until it has, the policy's match decides"
    )


def check_notes(given: Mapping[str, str | None], as_json: bool) -> None:
    """Ends the command where one of the options' texts is no line of text: others read it on their terminals."""
    for option, text in given.items():
        if text and (not text.isprintable() or len(text) > MOST_NOTE):
            stop(f"{option}: must be one line of up to {MOST_NOTE} printable characters", as_json, WRONG_USE)


def check_words(given: Mapping[str, str | None], as_json: bool) -> None:
    """Ends the command where one of the options' texts could not be a tenant or a cohort."""
    for option, text in given.items():
        if text is not None and (not text.strip() or not text.isprintable() or len(text) > 200):
            stop(f"{option}: must be 1 to 200 printable characters", as_json, WRONG_USE)
