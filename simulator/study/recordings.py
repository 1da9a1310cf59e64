"""Reads recordings of a scheduler: a folder with `config.json`, `trace.jsonl` and `steps.jsonl`, plain or gzip."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cost_models.nodes import parse_yaml
from simulator.engine.exact import ExactStep
from simulator.engine.replay import ReplayRequest, ReplaySettings
from simulator.errors import InputError
from simulator.memory import Content, Contents
from simulator.scenario import reader
from simulator.scenario.numbers import Count, NaturalInt
from simulator.scenario.reader import Range
from simulator.scenario.schedulers import VllmScheduler
from simulator.scenario.speculation import Speculation as ScenarioSpeculation
from simulator.scheduling import Speculation, TrackedSequence

Line = dict[str, Any]

_LAW: Line = {"base_ns": 5_000_000, "per_token_ns": 20_000, "per_ctx_ns": 10}
_METHODS = reader.tags(ScenarioSpeculation)
#: What a step of the record must say for its own times to be used.
_TIMES = ("sched_ns", "t_ns", "dur_ns")


@dataclass(frozen=True, slots=True)
class _Config:
    """`config.json`, but for `spec` and `time`; the names and defaults are those of the recordings."""

    max_num_seqs: Count = 128
    max_num_batched_tokens: Count = 2048
    max_model_len: Count = 8192
    block_size: Count = 16
    num_gpu_blocks: Annotated[int, Range(min=2, max=10**11)] = 1001
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: NaturalInt = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: Annotated[float, Range(min=0, below=1)] = 0.0
    prefill_schedule_interval: Count = 1
    max_num_active_seqs: Count | None = None
    async_scheduling: bool = False
    free_list: Literal["unhashed_first", "append"] = "unhashed_first"
    lookahead_hashing: bool = True
    preemption_victim: Literal["last", "least_computed"] = "last"
    preempted_first: bool = False
    max_num_partial_prefills: Count | None = None
    stopped: bool = False

    def settings(self, speculation: Speculation | None) -> ReplaySettings:
        """The engine that this describes."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        scheduler = VllmScheduler(
            scheduling_policy=self.policy,
            **{field.name: own[field.name] for field in fields(VllmScheduler) if field.name in own},
        )
        if speculation is not None:
            speculation = replace(speculation, lookahead_hashing=self.lookahead_hashing)
        return ReplaySettings(scheduler, speculation, self.num_gpu_blocks - 1, self.block_size, self.max_model_len)


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
        k = self.settings.speculation.k
        return RecordedDrafts(self.steps, [str(request.id) for request in self.requests], k)


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

    def __init__(self, steps: list[Line], names: list[str], k: int) -> None:
        self._k = k
        self._accepted = [{name: int(both[1]) for name, both in line.get("accepted", {}).items()} for line in steps]
        self._proposed = [{name: int(k) for name, k in line.get("proposed", {}).items()} for line in steps]
        self._names = names

    def length(self, running: int) -> tuple[int, int]:
        """See `engine.exact.Speculator`."""
        return self._k, self._k

    def accepted(self, step: int, seq: TrackedSequence, drafts: int) -> int:
        """See `engine.exact.Speculator`."""
        return min(drafts, self._accepted[step].get(self._names[seq.index], 0)) if step < len(self._accepted) else 0

    def proposed(self, step: int, seq: TrackedSequence) -> int:
        """See `engine.exact.Speculator`."""
        return self._proposed[step].get(self._names[seq.index], 0) if step < len(self._proposed) else 0


def read_recording(folder: Path) -> Recording:
    """The recording in `folder`.

    Raises:
        InputError: a file is missing, unreadable or not of the format.
    """
    config, speculation, law = _config(folder / "config.json")
    requests, contents = _requests(folder, config.max_model_len)
    settings = config.settings(speculation)
    recording = Recording(folder.resolve().name, settings, requests, contents, _steps(folder, law), law, config.stopped)
    try:
        recording.speculator()
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: steps: accepted or proposed: {_reason(error)}") from None
    return recording


def _config(path: Path) -> tuple[_Config, Speculation | None, Line | None]:
    """The settings, the speculation and the time law, None for that of the record."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {_reason(error)}") from None
    node = parse_yaml(text, str(path))
    if isinstance(node.value, dict):
        for key in ("spec", "time"):
            node.value.pop(key, None)
    return reader.read(_Config, node), _speculation(path, raw.get("spec")), _law(path, raw.get("time"))


def _speculation(path: Path, spec: Any) -> Speculation | None:
    """How drafts came about (`accept_p`, `seed`, ...) does not matter: what became of them is in the steps."""
    if spec is None:
        return None
    method, k = (spec.get("method"), spec.get("k")) if isinstance(spec, dict) else (None, None)
    if method not in _METHODS or type(k) is not int or k < 1:
        raise InputError(f"{path}: spec: needs a method ({', '.join(_METHODS)}) and k, the drafts of a step")
    return Speculation(method, k)


def _law(path: Path, law: Any) -> Line | None:
    if law == "recorded":
        return None
    law = {} if law is None else law
    if not isinstance(law, dict) or set(law) - set(_LAW) or any(type(value) is not int for value in law.values()):
        raise InputError(f"{path}: time: expected 'recorded', or whole numbers for {', '.join(_LAW)}")
    return _LAW | law


def _steps(folder: Path, law: Line | None) -> list[Line]:
    steps = _lines(folder, "steps")
    for number, line in enumerate(steps):
        if law is None and any(type(line.get(key)) is not int for key in _TIMES):
            raise InputError(f"{folder}: steps: line {number + 1}: needs whole numbers for {', '.join(_TIMES)}")
    return steps


def _requests(folder: Path, limit: int) -> tuple[list[ReplayRequest], Contents]:
    lines = _lines(folder, "trace")
    try:
        lines.sort(key=_arrival_ns)
        lines.sort(key=lambda line: _whole(line, "num_prefill_tokens", 1) >= limit)  # who is refused goes to the end
        requests = [_request(line, limit) for line in lines if line["num_prefill_tokens"] < limit]
        contents = Contents(
            _contents(lines),
            [line["num_prefill_tokens"] for line in lines],
            [_whole(line, "num_decode_tokens", 1) for line in lines],
        )
        return requests, contents
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: trace: {_reason(error)}") from None


def _request(line: Line, limit: int) -> ReplayRequest:
    prompt, told = _whole(line, "num_prefill_tokens", 1), _whole(line, "num_decode_tokens", 1)
    return ReplayRequest(
        id=line["id"],
        arrival_ns=_arrival_ns(line),
        prompt_tokens=prompt,
        output_tokens=min(told, limit - prompt),
        max_tokens=_whole(line, "max_tokens", 1, told),
        priority=_whole(line, "priority", -(2**31), 0),
    )


def _contents(lines: list[Line]) -> list[Content]:
    numbers = {line["id"]: number for number, line in enumerate(lines)}
    if len(numbers) < len(lines):
        raise ValueError("an id is there twice")
    texts: dict[Any, int] = {}
    contents = [_content(line, numbers, texts) for line in lines]
    sound: set[int] = set()
    for number in range(len(contents)):
        line: list[int] = []
        at: int | None = number
        while at is not None and at not in sound:
            if len(line) > len(contents):
                raise ValueError(f"request {lines[number]['id']!r} descends from itself by way of its parents")
            line.append(at)
            at = contents[at].parent
        sound.update(line)
    return contents


def _content(line: Line, numbers: dict[Any, int], texts: dict[Any, int]) -> Content:
    named: list[tuple[int, int]] = []
    for key, tokens in (("prefix_id", _whole(line, "prefix_len", 0, 0)), ("prompt_id", line["num_prefill_tokens"])):
        if line.get(key) is not None and tokens:
            named.append((texts.setdefault((key, line[key]), len(texts)), tokens))
    parent = line.get("parent")
    if parent is not None and parent not in numbers:
        raise ValueError(f"the parent {parent!r} of request {line['id']!r} is not among the requests")
    return Content(
        texts=tuple(named),
        hash_ids=[texts.setdefault(("hash_id", each), len(texts)) for each in line.get("hash_ids") or ()],
        hash_block=_whole(line, "hash_block", 1, 1),
        parent=None if parent is None else numbers[parent],
    )


def _whole(line: Line, key: str, low: int, default: int | None = None) -> int:
    value = line.get(key)
    if value is None:
        value = default
    if type(value) is not int or value < low:
        raise ValueError(f"request {line.get('id')!r}: {key}: expected a whole number from {low}, found {value!r}")
    return value


def _arrival_ns(line: Line) -> int:
    return int(line["arrival_ns"]) if "arrival_ns" in line else round(line["arrival_time"] * 1e9)


def _lines(folder: Path, stem: str) -> list[Line]:
    plain, packed = folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz"
    path = packed if packed.exists() and not plain.exists() else plain
    opened: Callable[..., Any] = gzip.open if path is packed else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: {_reason(error)}") from None
    for number, line in enumerate(lines):
        if not isinstance(line, dict):
            raise InputError(f"{path}: entry {number + 1}: expected an object")
    return lines


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]}: missing"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
