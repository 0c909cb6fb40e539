"""Following the policy file of a running system: a changed good file is applied, a bad one is reported and ignored.

A policy applied over HTTP stays until the file *changes* after that. Only the text counts: a file that was touched, or
written again as it was, has not changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from controlplane.policy import Policy, PolicyError, load_policy
from controlplane.watched_file import WatchedFile

log = logging.getLogger(__name__)

POLL_S = 0.4
"""Between two looks. A change is applied at the second look that finds it, so after 0.8 s at most."""

FILE = "policy file"
"""Who applied a policy that came from the file, in the history."""

MAX_PROBLEMS = 20


class PolicyWatch:
    """One policy file. revision: of the text of this file that was applied last; None when that is not known."""

    def __init__(self, path: Path, revision: str | None) -> None:
        self.path = path
        self.problems: tuple[str, ...] = ()
        self._revision = revision
        self._file = WatchedFile(path, is_known=False)

    def poll(self) -> Policy | None:
        """The file's policy if it changed and is good. Blocks for a stat, and for a read after a change."""
        if not self._file.has_changed():
            return None
        try:
            policy = load_policy(self.path)
        except PolicyError as error:
            self._revision = None
            self._report(str(error).splitlines())
            return None
        self.problems = ()
        if policy.revision == self._revision:
            return None
        self._revision = policy.revision
        return policy

    def _report(self, lines: list[str]) -> None:
        more = len(lines) - MAX_PROBLEMS
        self.problems = (*lines[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else []))
        log.warning("the policy file is not applied, the last good policy stays in force: %s", "; ".join(self.problems))


async def follow(watch: PolicyWatch, apply: Callable[[Policy], None], every_s: float = POLL_S) -> None:
    """Poll for ever beside the event loop, and hand each new policy to `apply`. What `apply` raises is logged."""
    while True:
        await asyncio.sleep(every_s)
        policy = await asyncio.to_thread(watch.poll)
        if policy is None:
            continue
        try:
            apply(policy)
        except Exception:
            log.exception("the policy file's revision %s could not be applied", policy.revision)
        else:
            log.info("policy revision %s applied from %s", policy.revision, watch.path)
