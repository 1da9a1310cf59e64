"""Reads recordings of a scheduler: a folder with `config.json`, `trace.jsonl` and `steps.jsonl`, plain or gzip."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.engine.exact import ExactStep
from simulator.engine.replay import ReplayRequest, ReplaySettings
from simulator.errors import InputError, did_you_mean
from simulator.memory import Content, Contents
from simulator.scenario.schema import VllmScheduler
from simulator.scheduling import Speculation

Line = dict[str, Any]

_SCHEDULER: Line = {
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
    "prefill_schedule_interval": 1,
    "max_num_active_seqs": None,
    "async_scheduling": False,
    "preemption_victim": "last",
    "preempted_first": False,
    "max_num_partial_prefills": None,
}
_OTHER: Line = {"max_model_len": 8192, "block_size": 16, "num_gpu_blocks": 1001, "policy": "fcfs", "spec": None}
_LAW: Line = {"base_ns": 5_000_000, "per_token_ns": 20_000, "per_ctx_ns": 10}


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording in memory. `requests` are those that the front end lets in; `contents` go on with the rest."""

    name: str
    settings: ReplaySettings
    requests: list[ReplayRequest]
    contents: Contents
    steps: list[Line]
    law: Line | None  # None: durations are those of the record
    stopped: bool  # the engine was stopped there, with work left

    def time_law(self) -> LinearTime | RecordedTime:
        """A fresh time law."""
        return RecordedTime(self.steps) if self.law is None else LinearTime(**self.law)

    def speculator(self) -> RecordedDrafts | None:
        """What becomes of drafts, as the record says."""
        if self.settings.speculation is None:
            return None
        return RecordedDrafts(self.steps, [str(request.id) for request in self.requests])


class LinearTime:
    """base + per_token x tokens + per_ctx x sum of (computed + tokens); nothing for a step that only preempts."""

    def __init__(self, base_ns: int, per_token_ns: int, per_ctx_ns: int) -> None:
        self._base, self._token, self._context = base_ns, per_token_ns, per_ctx_ns

    def times(self, step: ExactStep, ready_ns: int) -> tuple[int, int]:
        """See `engine.replay.TimeLaw`."""
        if not step.total:
            return ready_ns, ready_ns
        return ready_ns, ready_ns + self._base + self._token * step.total + self._context * step.context


class RecordedTime:
    """Durations, and pauses before a step, are those of the record."""

    def __init__(self, steps: list[Line]) -> None:
        self._times = []
        busy = 0
        for line in steps:
            pause = line["t_ns"] - max(line["sched_ns"], busy)
            busy = line["t_ns"] + line["dur_ns"]
            self._times.append((pause, line["dur_ns"]))

    def times(self, step: ExactStep, ready_ns: int) -> tuple[int, int]:
        """See `engine.replay.TimeLaw`. A step beyond the record takes no time."""
        pause, duration = self._times[step.index] if step.index < len(self._times) else (0, 0)
        return ready_ns + pause, ready_ns + pause + duration


class RecordedDrafts:
    """Accepted and proposed drafts of the record; where it has none, none."""

    def __init__(self, steps: list[Line], names: list[str]) -> None:
        self._accepted = [line.get("accepted", {}) for line in steps]
        self._proposed = [line.get("proposed", {}) for line in steps]
        self._names = names

    def accepted(self, step: int, index: int, drafts: int) -> int:
        """See `engine.exact.Speculator`."""
        entry = self._accepted[step].get(self._names[index]) if step < len(self._accepted) else None
        return min(drafts, entry[1]) if entry else 0

    def proposed(self, step: int, index: int) -> int:
        """See `engine.exact.Speculator`."""
        if step >= len(self._proposed):
            return 0
        return int(self._proposed[step].get(self._names[index], 0))


def read_recording(folder: Path) -> Recording:
    """The recording in `folder`.

    Raises:
        InputError: a file is missing, unreadable or not of the format.
    """
    config = _config(folder)
    settings = _settings(folder, config)
    requests, contents = _requests(folder, settings.max_model_len)
    law = config.get("time", {})
    if law != "recorded":
        law = _LAW | law
    steps = _lines(folder, "steps")
    stopped = bool(config.get("stopped", False))
    return Recording(folder.name, settings, requests, contents, steps, None if law == "recorded" else law, stopped)


def _config(folder: Path) -> Line:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {_reason(error)}") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected an object")
    known = {*_SCHEDULER, *_OTHER, "time", "stopped"}
    for key in config:
        if key not in known:
            raise InputError(f"{path}: {key}: unknown key{did_you_mean(key, known)}")
    return config


def _settings(folder: Path, config: Line) -> ReplaySettings:
    settings, other = _SCHEDULER | config, _OTHER | config
    spec = other["spec"]
    try:
        speculation = Speculation(spec["method"], spec["k"]) if spec else None
        scheduler = VllmScheduler(scheduling_policy=other["policy"], **{name: settings[name] for name in _SCHEDULER})
        blocks = other["num_gpu_blocks"] - 1
        return ReplaySettings(scheduler, speculation, blocks, other["block_size"], other["max_model_len"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / 'config.json'}: {_reason(error)}") from None


def _requests(folder: Path, limit: int) -> tuple[list[ReplayRequest], Contents]:
    lines = _lines(folder, "trace")
    try:
        lines.sort(key=_arrival_ns)
        lines.sort(key=lambda line: bool(line["num_prefill_tokens"] >= limit))  # who is refused goes to the end
        requests = [_request(line, limit) for line in lines if line["num_prefill_tokens"] < limit]
        numbers = {line["id"]: number for number, line in enumerate(lines)}
        texts: dict[Any, int] = {}
        contents = Contents(
            [_content(line, numbers, texts) for line in lines],
            [line["num_prefill_tokens"] for line in lines],
            [line["num_decode_tokens"] for line in lines],
        )
        return requests, contents
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: trace: {_reason(error)}") from None


def _request(line: Line, limit: int) -> ReplayRequest:
    prompt: int = line["num_prefill_tokens"]
    told: int = line["num_decode_tokens"]
    return ReplayRequest(
        id=line["id"],
        arrival_ns=_arrival_ns(line),
        prompt_tokens=prompt,
        output_tokens=min(told, limit - prompt),
        max_tokens=line.get("max_tokens") or told,
        priority=line.get("priority", 0),
    )


def _content(line: Line, numbers: dict[Any, int], texts: dict[Any, int]) -> Content:
    named: list[tuple[int, int]] = []
    for key, tokens in (("prefix_id", line.get("prefix_len", 0)), ("prompt_id", line["num_prefill_tokens"])):
        if line.get(key) is not None and tokens:
            named.append((texts.setdefault((key, line[key]), len(texts)), tokens))
    parent = line.get("parent")
    if parent is not None and parent not in numbers:
        raise ValueError(f"the parent {parent!r} of request {line['id']!r} is not among the requests")
    return Content(
        texts=tuple(named),
        hash_ids=tuple(line.get("hash_ids", ())),
        hash_block=line.get("hash_block", 1),
        parent=None if parent is None else numbers[parent],
    )


def _arrival_ns(line: Line) -> int:
    return int(line["arrival_ns"]) if "arrival_ns" in line else round(line["arrival_time"] * 1e9)


def _lines(folder: Path, stem: str) -> list[Line]:
    plain, packed = folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz"
    path = packed if packed.exists() and not plain.exists() else plain
    opened: Callable[..., Any] = gzip.open if path is packed else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]}: missing"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
