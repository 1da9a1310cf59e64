"""Writes every step of a replica, in the format of scheduler recordings: one folder a replica.

`config.json` holds the scheduler's settings, `trace.jsonl.gz` the requests that the replica got, `steps.jsonl.gz` one
line a step: which sequences computed how many tokens on top of how many, who came, went and was preempted, and the
blocks in use after the step was formed (`kv_used`) and after its tokens were delivered (`kv_used_end`). Times are ns.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from simulator.engine.batch import Step
from simulator.engine.plain import PlainStep
from simulator.engine.replica import Replica
from simulator.scenario.schema import LinearCost, Pool
from simulator.scheduling import Sequence
from simulator.workload.requests import RequestTable


class StepRecorder:
    """The observer of one replica. `close` must be called at the end."""

    def __init__(self, folder: Path, pool: Pool, kv_blocks: int, max_model_len: int, table: RequestTable) -> None:
        self._replica: Replica | None = None
        self._table = table
        self._lines: dict[int, dict[str, Any]] = {}
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(_config(pool, kv_blocks, max_model_len), indent=1) + "\n")
        self._steps = _gzip(folder / "steps.jsonl.gz")
        self._trace = _gzip(folder / "trace.jsonl.gz")

    def attach(self, replica: Replica) -> None:
        """Observe this replica."""
        self._replica = replica

    def arrived(self, seq: Sequence) -> None:
        """Write the request's line."""
        assert self._replica is not None
        request = self._table[seq.index]
        line = {
            "id": self._id(seq.index),
            "arrival_ns": self._replica.arrival_ns(seq.index),
            "num_prefill_tokens": request.prompt_tokens,
            "num_decode_tokens": request.output_tokens,
        }
        if request.max_tokens != request.output_tokens:
            line["max_tokens"] = request.max_tokens
        _write(self._trace, line)

    def formed(self, step: Step, sched_ns: int, start_ns: int) -> None:
        """Note what the step does."""
        assert isinstance(step, PlainStep) and self._replica is not None
        plan = step.plan
        self._lines[step.index] = {
            "step": step.index,
            "sched_ns": sched_ns,
            "t_ns": start_ns,
            "dur_ns": step.end_ns - start_ns,
            "total": sum(tokens for _, tokens, _ in step.scheduled),
            "sched": [[self._id(seq.index), tokens, computed] for seq, tokens, computed in step.scheduled],
            "new": [self._id(seq.index) for seq in plan.admitted if not seq.preemptions],
            "resumed": [self._id(seq.index) for seq in plan.admitted if seq.preemptions],
            "preempted": [self._id(seq.index) for seq in plan.preempted],
            "hits": {self._id(seq.index): 0 for seq in plan.admitted},
            "kv_used": self._replica.kv_used,
            "n_running": self._replica.batch.running,
            "n_waiting": len(self._replica.batch.waiting),
        }

    def completed(self, step: Step) -> None:
        """Write the step's line."""
        assert isinstance(step, PlainStep) and self._replica is not None
        line = self._lines.pop(step.index)
        line["end_ns"] = step.end_ns
        line["emitted"] = {self._id(seq.index): 1 for seq in step.emitting}
        line["finished"] = [self._id(seq.index) for seq in step.ending]
        line["kv_used_end"] = self._replica.kv_used
        line["n_hashed"] = 0
        _write(self._steps, line)

    def close(self) -> None:
        """Finish the files."""
        self._steps.close()
        self._trace.close()

    def _id(self, index: int) -> str:
        return self._table.ids[index] if self._table.ids is not None else str(index)


def _config(pool: Pool, kv_blocks: int, max_model_len: int) -> dict[str, Any]:
    """The settings under the names of vLLM, with its reserved block 0 among `num_gpu_blocks`."""
    scheduler, cost = pool.scheduler, pool.cost_model
    config: dict[str, Any] = {
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": max_model_len,
        "block_size": pool.memory.block_size,
        "num_gpu_blocks": kv_blocks + 1,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "enable_prefix_caching": False,
        "policy": "fcfs",
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
        "scheduler_reserve_full_isl": scheduler.scheduler_reserve_full_isl,
        "watermark": scheduler.watermark,
        "async_scheduling": scheduler.async_scheduling,
        "time": "recorded",
    }
    if isinstance(cost, LinearCost) and not (cost.per_prefill_token or cost.per_decode_token or cost.host):
        config["time"] = {
            "base_ns": cost.base,
            "per_token_ns": cost.per_token,
            "per_ctx_ns": cost.per_context_token,
        }
    return config


def _gzip(path: Path) -> gzip.GzipFile:
    # Without a time of writing in it, the same run gives the same bytes.
    return gzip.GzipFile(path, "wb", compresslevel=6, mtime=0)


def _write(file: gzip.GzipFile, line: dict[str, Any]) -> None:
    file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())
