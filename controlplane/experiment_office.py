"""The experiment of a running system and its ledger: taken up after a restart, its sums made as windows end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import sqlalchemy as sa

from controlplane.controller import Controller
from controlplane.experiment_control import ExperimentControl, ExperimentLog
from controlplane.store.experiments import close_pairs, fill_windows, last_pair, open_experiment

log = logging.getLogger(__name__)

FILL_EVERY_S = 60.0


def take_up(engine: sa.Engine, controller: Controller, log_to: ExperimentLog) -> ExperimentControl:
    """Go on with the experiment on record, if one is running; the pair that the last controller left is given up.

    A ledger that cannot be read means no experiment, and nothing else.
    """
    control = ExperimentControl(controller, log_to)
    try:
        close_pairs(engine, "the controller was restarted")
        found = open_experiment(engine)
        last = -1 if found is None else last_pair(engine, found[0].id)
    except Exception as error:
        log.warning("no experiment is taken up, the ledger cannot be read: %s", str(error).splitlines()[0])
        return control
    if found is not None:
        (control.run, control.done), control.looked_at = found, last
    return control


async def keep_filled(engine: sa.Engine, is_in_charge: Callable[[], bool]) -> None:
    """Make the sums of windows that are over, and again while late ones may arrive; for ever."""
    while True:
        await asyncio.sleep(FILL_EVERY_S)
        if is_in_charge():
            try:
                await asyncio.to_thread(fill_windows, engine, time.time())
            except Exception as error:
                # Nothing is lost: the next try, or the report, makes them from the same rows.
                log.warning("the sums of an experiment cannot be made: %s", str(error).splitlines()[0])
