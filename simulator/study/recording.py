"""Recordings of the steps of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from simulator.engine.logs.step_recorder import StepRecorder
from simulator.errors import InputError
from simulator.results.store import PARTIAL
from simulator.scenario.schema import Pool
from simulator.scheduling import limits
from simulator.study.prepare import Prepared


@contextlib.contextmanager
def recording(prepared: Prepared, folder: Path) -> Iterator[list[StepRecorder]]:
    """Provide the recorders of the replicas, and close them at the end.

    The folder, new or empty, is marked partial until `mark_complete`.

    Raises:
        InputError: the folder is not empty, or steps of such a deployment cannot be recorded.
    """
    recorders = _recorders(prepared, folder)
    try:
        yield recorders
    finally:
        for recorder in recorders:
            recorder.close()


def mark_complete(folder: Path) -> None:
    """Remove the mark of partial recordings."""
    (folder / PARTIAL).unlink()


def _recorders(prepared: Prepared, folder: Path) -> list[StepRecorder]:
    if prepared.scenario.run.engine == "lazy":
        raise InputError("--steps records every sequence of every step, which run.engine: lazy does not compute")
    if prepared.scenario.deployment.handover is not None:
        raise InputError("--steps cannot record prefill and decode pools: a recording has no KV transfers")
    for pool in prepared.resolved.pools:
        if _varies_ahead(pool.settings):
            raise InputError(
                "--steps: a recording of asynchronous scheduling has one number of drafts for all steps "
                f"(speculation of pool {pool.name})"
            )
        if pool.service.lockstep:
            raise InputError(
                "--steps: a recording is of one scheduler that forms its steps alone, not of ranks that step together "
                f"(data_parallel of a mixture of experts, pool {pool.name})"
            )
        if pool.settings.memory.offload is not None:
            raise InputError(f"--steps: a recording has no loads from CPU memory (memory.offload of pool {pool.name})")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--steps {folder}: exists and is not an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PARTIAL).touch()
    replicas = [pool for pool in prepared.resolved.pools for _ in range(pool.settings.ranks)]
    return [
        StepRecorder(
            folder / str(number), pool.settings, pool.service.kv_blocks, pool.service.max_model_len, prepared.table
        )
        for number, pool in enumerate(replicas)
    ]


def _varies_ahead(pool: Pool) -> bool:
    """Return whether a pool schedules asynchronously with a varying number of drafts."""
    speculation = pool.speculation
    if speculation is None or not limits(pool.scheduler).async_scheduling:
        return False
    return speculation.length.TAG != "fixed" or speculation.disable_by_batch_size is not None
