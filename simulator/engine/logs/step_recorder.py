"""Recording of every step of an engine core, in the format of scheduler recordings: one folder for each core.

`config.json` has the scheduler's settings, `trace.jsonl.gz` the requests of the core, `steps.jsonl.gz` one line for
each step; docs/recordings.md describes them. Times are in ns.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from simulator.engine.batches.explicit_step import ExplicitStep
from simulator.engine.batches.interface import Step
from simulator.engine.core import EngineCore
from simulator.engine.logs.step_line import CoreState, complete_line, formed_line
from simulator.scenario.plain_values import plain
from simulator.scenario.schedulers import Scheduler, VllmScheduler
from simulator.scenario.schema import LinearCost, Pool
from simulator.scheduling import SequenceState, TrackedSequence, limits
from simulator.workload.requests import RequestTable

#: Settings with the same name in a recording.
_SETTINGS = (
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "prefill_schedule_interval",
    "scheduler_reserve_full_isl",
    "watermark",
    "async_scheduling",
)
#: Settings with their defaults, which a recording has only with another value.
_OWN_SETTINGS = {
    "free_list": "unhashed_first",
    "lookahead_hashing": True,
    "preemption_victim": "last",
    "preempted_first": False,
    "max_num_partial_prefills": None,
}


class StepRecorder:
    """Observer that records the steps of one engine core; `close` must be called at the end."""

    def __init__(self, folder: Path, pool: Pool, kv_blocks: int, max_model_len: int, table: RequestTable) -> None:
        self._core: EngineCore | None = None
        self._table = table
        self._priorities = table.extras.get("priority")
        self._lines: dict[int, dict[str, Any]] = {}
        self._asked_ns = -1  # time of the last call of the scheduler
        folder.mkdir(parents=True)
        self._config_path = folder / "config.json"
        self._config = _config(pool, kv_blocks, max_model_len)
        self._proposes = pool.speculation is not None and not limits(pool.scheduler).async_scheduling
        self._steps = _gzip(folder / "steps.jsonl.gz")
        self._trace = _gzip(folder / "trace.jsonl.gz")

    def attach(self, core: EngineCore) -> None:
        """Observe this engine core."""
        self._core = core

    def asked(self, now_ns: int) -> None:
        """Keep the time of a call of the scheduler, which does not include later arrivals of the same instant."""
        self._asked_ns = now_ns

    def arrived(self, seq: SequenceState, ready_ns: int) -> None:
        """Write the line of a request; its arrival is the time at which the front end has processed it."""
        assert isinstance(seq, TrackedSequence)
        index = seq.index
        request = self._table[index]
        line: dict[str, Any] = {
            "id": self._id(index),
            "arrival_ns": ready_ns,
            "num_prefill_tokens": request.prompt_tokens,
            "num_decode_tokens": request.output_tokens,
        }
        assert self._core is not None
        batch = self._core.batch
        if ready_ns == self._asked_ns and batch.completed < batch.step:
            # An event of the same instant sent it after the call of the scheduler.
            line["behind_step"] = batch.completed
        if request.max_tokens != request.output_tokens:
            line["max_tokens"] = request.max_tokens
        if seq.priority:
            line["priority"] = seq.priority
        if request.prefix_id >= 0 and request.prefix_tokens > 0:
            line |= {"prefix_id": request.prefix_id, "prefix_len": request.prefix_tokens}
        if self._table.prompt_id[index] >= 0:
            line["prompt_id"] = int(self._table.prompt_id[index])
        _write(self._trace, line)

    def formed(self, step: Step, sched_ns: int, start_ns: int) -> None:
        """Start the line of a step."""
        assert isinstance(step, ExplicitStep) and self._core is not None
        state = CoreState.of(self._core.batch)
        self._lines[step.index] = formed_line(step, self._id, sched_ns, start_ns, state)

    def completed(self, step: Step) -> None:
        """Complete and write the line of a step."""
        assert isinstance(step, ExplicitStep) and self._core is not None
        state = CoreState.of(self._core.batch)
        _write(self._steps, complete_line(self._lines.pop(step.index), step, self._id, state, self._proposes))

    def close(self) -> None:
        """Write the settings and close the files."""
        if self._core is not None and self._core.batch.unfinished:
            self._config["stopped"] = True  # at a horizon, by Ctrl-C or in a deadlock
        self._config_path.write_text(json.dumps(self._config, indent=1) + "\n")
        self._steps.close()
        self._trace.close()

    def _id(self, index: int) -> str:
        return self._table.ids[index] if self._table.ids is not None else str(index)


def _config(pool: Pool, kv_blocks: int, max_model_len: int) -> dict[str, Any]:
    """Return the settings: those of vLLM by its own names, those of another scheduler as in a scenario.

    `num_gpu_blocks` includes the block 0 that vLLM reserves.
    """
    cost = pool.cost_model
    config = _vllm_settings(pool.scheduler) if isinstance(pool.scheduler, VllmScheduler) else _settings(pool.scheduler)
    config |= {
        "max_model_len": max_model_len,
        "block_size": pool.memory.block_size,
        "num_gpu_blocks": kv_blocks + 1,
        "time": "recorded",
    }
    if pool.memory.allocation != "paged":
        config["allocation"] = pool.memory.allocation
    if pool.speculation is not None:
        config["spec"] = {"method": pool.speculation.TAG, "k": pool.speculation.num_speculative_tokens}
    if pool.speculation is not None or pool.pipeline_parallel > 1:
        return config  # the recorded times include drafting, waits for stages and sends between them
    if getattr(pool.scheduler, "padded", False):
        return config  # the recorded times include the padding of a rectangle
    if isinstance(cost, LinearCost) and not (cost.per_prefill_token or cost.per_decode_token or cost.host):
        config["time"] = {
            "base_ns": cost.base,
            "per_token_ns": cost.per_token,
            "per_ctx_ns": cost.per_context_token,
        }
    return config


def _vllm_settings(scheduler: VllmScheduler) -> dict[str, Any]:
    config: dict[str, Any] = {name: getattr(scheduler, name) for name in _SETTINGS}
    own = {name: getattr(scheduler, name) for name in _OWN_SETTINGS}
    config |= {name: value for name, value in own.items() if value != _OWN_SETTINGS[name]}
    return config | {"policy": scheduler.scheduling_policy}


def _settings(scheduler: Scheduler) -> dict[str, Any]:
    return {"scheduler": {scheduler.TAG_KEY: scheduler.TAG} | plain(scheduler)}


def _gzip(path: Path) -> gzip.GzipFile:
    # Without the time of writing, the same run gives the same bytes.
    return gzip.GzipFile(path, "wb", compresslevel=6, mtime=0)


def _write(file: gzip.GzipFile, line: dict[str, Any]) -> None:
    file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())
