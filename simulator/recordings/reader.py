"""Reader of recordings of a scheduler: folders with `config.json`, `trace.jsonl` and `steps.jsonl`, plain or gzip."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cost_models.errors import shown
from cost_models.files.documents import json_lines, read_json
from cost_models.files.fields import Fields
from simulator.engine.batches.explicit_step import ExplicitStep
from simulator.engine.replay import ReplayRequest, ReplaySettings
from simulator.errors import did_you_mean
from simulator.memory import Contents
from simulator.recordings.requests import line_file, read_requests
from simulator.recordings.simultaneous import with_ties
from simulator.scenario import reader
from simulator.scenario.numbers import Count, NaturalInt
from simulator.scenario.quantities import Range
from simulator.scenario.schedulers import Scheduler, VllmScheduler
from simulator.scenario.schema import Allocation
from simulator.scenario.speculation import Speculation as ScenarioSpeculation
from simulator.scenario.values import node_of
from simulator.scheduling import Speculation, TrackedSequence
from simulator.workload.tables import MAX_SECONDS, NS

Line = dict[str, Any]

_LAW: Line = {"base_ns": 5_000_000, "per_token_ns": 20_000, "per_ctx_ns": 10}
_METHODS = reader.tags(ScenarioSpeculation)
#: Keys that each step must have if the recorded times are used.
_TIMES = ("sched_ns", "t_ns", "dur_ns")
#: Limits of plausible values: drafts of a step, and ns of a part of a step.
_MOST_DRAFTS, _LONGEST_NS = 1000, 86_400 * NS


@dataclass(frozen=True, slots=True)
class _Config:
    """The contents of `config.json` without `spec` and `time`, with the recordings' names and defaults."""

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
    allocation: Allocation = "paged"
    stopped: bool = False
    #: Scheduler of another policy than vLLM's, with its settings as in a scenario.
    scheduler: Scheduler | None = None

    def __post_init__(self) -> None:
        if self.allocation != "paged" and self.enable_prefix_caching:
            raise ValueError("allocation: prefix caching shares blocks, which needs paged memory")

    def settings(self, speculation: Speculation | None) -> ReplaySettings:
        """Return the settings of the engine that this describes."""
        blocks = self.num_gpu_blocks - 1
        if self.scheduler is not None:
            sizes = (blocks, self.block_size, self.max_model_len, self.allocation)
            return ReplaySettings(self.scheduler, speculation, *sizes)
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        scheduler = VllmScheduler(
            scheduling_policy=self.policy,
            **{field.name: own[field.name] for field in fields(VllmScheduler) if field.name in own},
        )
        if speculation is not None:
            speculation = speculation._replace(lookahead_hashing=self.lookahead_hashing)
        return ReplaySettings(scheduler, speculation, blocks, self.block_size, self.max_model_len, self.allocation)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording in memory. `requests` are those that fit the context; `contents` are theirs, then the others'."""

    name: str
    settings: ReplaySettings
    requests: list[ReplayRequest]
    contents: Contents
    steps: list[Line]
    law: Line | None  # None: durations are those of the record
    stopped: bool  # the engine was stopped before all requests ended

    def time_law(self) -> LinearTime | RecordedTime:
        """Return a new time law."""
        return RecordedTime(self.steps) if self.law is None else LinearTime(**self.law)

    def speculator(self) -> RecordedDrafts | None:
        """Return the recorded drafts, None without speculation."""
        if self.settings.speculation is None:
            return None
        k = self.settings.speculation.k
        return RecordedDrafts(self.steps, [str(request.id) for request in self.requests], k)


class LinearTime:
    """Time law base + per_token x tokens + per_ctx x sum of (computed + tokens); 0 for a step that only preempts."""

    def __init__(self, base_ns: int, per_token_ns: int, per_ctx_ns: int) -> None:
        self._base, self._token, self._context = base_ns, per_token_ns, per_ctx_ns

    def times(self, step: ExplicitStep, ready_ns: int) -> tuple[int, int]:
        """Return (start, end) of a step that could start at `ready_ns`."""
        if not step.total:
            return ready_ns, ready_ns
        return ready_ns, ready_ns + self._base + self._token * step.total + self._context * step.context


class RecordedTime:
    """Time law with the recorded durations of steps and the recorded pauses before them."""

    def __init__(self, steps: list[Line]) -> None:
        self._times = []
        busy = 0
        for line in steps:
            pause = line["t_ns"] - max(line["sched_ns"], busy)
            busy = line["t_ns"] + line["dur_ns"]
            self._times.append((pause, line["dur_ns"]))

    def times(self, step: ExplicitStep, ready_ns: int) -> tuple[int, int]:
        """Return (start, end) of a step that could start at `ready_ns`. A step beyond the record takes no time."""
        pause, duration = self._times[step.index] if step.index < len(self._times) else (0, 0)
        return ready_ns + pause, ready_ns + pause + duration


class RecordedDrafts:
    """Accepted and proposed drafts of the record; 0 where it has none."""

    def __init__(self, steps: list[Line], names: list[str], k: int) -> None:
        self._k = k
        self._accepted = [{name: int(both[1]) for name, both in line.get("accepted", {}).items()} for line in steps]
        self._proposed = [{name: int(k) for name, k in line.get("proposed", {}).items()} for line in steps]
        self._names = names

    def length(self, running: int) -> tuple[int, int]:
        """Return the number of drafts for each sequence after the step that is formed now, and the number of passes of
        the drafter that they take. `running` counts the running sequences."""
        return self._k, self._k

    def accepted(self, step: int, seq: TrackedSequence, drafts: int) -> int:
        """Return the number of the scheduled drafts of a sequence that the step accepts."""
        return min(drafts, self._accepted[step].get(self._names[seq.index], 0)) if step < len(self._accepted) else 0

    def proposed(self, step: int, seq: TrackedSequence) -> int:
        """Return the number of drafts proposed at the end of a synchronous step for the sequence's next one."""
        return self._proposed[step].get(self._names[seq.index], 0) if step < len(self._proposed) else 0


def read_recording(folder: Path) -> Recording:
    """Read the recording in `folder`.

    Raises:
        InputError: a file is missing, unreadable or not in the format.
    """
    config, speculation, law = _config(folder / "config.json")
    requests, contents = read_requests(folder, config.max_model_len)
    settings, steps = config.settings(speculation), _steps(folder, law)
    requests = with_ties(requests, steps)
    return Recording(folder.resolve().name, settings, requests, contents, steps, law, config.stopped)


def _config(path: Path) -> tuple[_Config, Speculation | None, Line | None]:
    """Read the settings, the speculation, and the time law (None for recorded times)."""
    node = node_of(read_json(path), str(path))
    fields = Fields(str(path), node.plain())
    speculation, law = _speculation(fields), _law(fields)
    if isinstance(node.value, dict):
        for key in ("spec", "time"):
            node.value.pop(key, None)
    return reader.read(_Config, node), speculation, law


def _speculation(fields: Fields) -> Speculation | None:
    """Read the method and number of drafts. Keys about their origin (`accept_p`, `seed`, ...) are ignored: the steps
    hold the accepted drafts."""
    spec = fields.section("spec")
    if spec is None:
        return None
    method = spec.text("method")
    if method not in _METHODS:
        raise spec.error("method", f"{shown(method)} is not known{did_you_mean(method, _METHODS)}")
    return Speculation(method, spec.integer("k", most=_MOST_DRAFTS))


def _law(fields: Fields) -> Line | None:
    if fields.value("time")[1] == "recorded":
        return None
    law = fields.section("time")
    if law is None:
        return _LAW
    found = {name: law.integer(name, default=left_out, least=0, most=_LONGEST_NS) for name, left_out in _LAW.items()}
    law.finish()
    return found


def _steps(folder: Path, law: Line | None) -> list[Line]:
    """Read the lines of `steps.jsonl`. Only the values that a replay uses are checked."""
    steps = []
    for place, line in json_lines(line_file(folder, "steps")):
        fields = Fields(place, line)
        if law is None:
            for key in _TIMES:
                fields.integer(key, least=0, most=MAX_SECONDS * NS)
        for key, width in (("accepted", 2), ("proposed", None)):
            _check_drafts(fields.section(key), width)
        assert isinstance(line, dict)
        steps.append(line)
    return steps


def _check_drafts(drafts: Fields | None, width: int | None) -> None:
    """Check the drafts of a step, by request: each a number if `width` is None, else a list of `width` numbers."""
    for name in drafts.names() if drafts is not None else ():
        assert drafts is not None
        if width is None:
            drafts.integer(name, least=0, most=_MOST_DRAFTS)
        elif len(drafts.numbers(name, most=_MOST_DRAFTS, whole=True)) != width:
            raise drafts.error(name, f"expected {width} whole numbers, the drafts and how many of them were accepted")
