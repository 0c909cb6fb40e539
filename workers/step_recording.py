"""What of an engine is recorded at its start, see workers/step_graphs.py."""

from __future__ import annotations

import time
from collections.abc import Iterable

import structlog

from workers.engine import Engine
from workers.first_line import first_line
from workers.model_runner import ModelRunner
from workers.step_graphs import Recorder, step_shapes

log = structlog.get_logger(__name__)


def record_steps(engine: Engine, rungs: Iterable[int], recorder: Recorder | None = None) -> None:
    """Record steps for every K of `rungs`, and 0, at every number of sequences; recorder: CUDA graphs where None.

    To be called while the engine is idle. What cannot be recorded stays eager, with a warning.
    """
    runner, none = engine.target.runner, step_shapes((), engine.max_sequences)
    own = step_shapes(rungs, engine.max_sequences)
    parts = [(runner, own, engine.target.feature_layers, engine.drafts_trees)]
    # A draft model computes one token of each sequence at a time.
    parts += [(part, none, (), False) for part in engine.proposer.compilables if isinstance(part, ModelRunner)]
    for part, shapes, layers, has_trees in parts:
        started = time.perf_counter()
        try:
            recorded = part.record(shapes, layers, has_trees, recorder)
        except RuntimeError as error:
            log.warning("steps are not recorded", model=part.name, reason=first_line(error))
        else:
            seconds = round(time.perf_counter() - started, 2)
            log.info("steps are recorded", model=part.name, shapes=len(recorded), seconds=seconds)
