"""Reading measured rows of speculative decoding: CSV files in which a row has one metric, named in a column.

Columns: `model`, `gpu`, `draft_or_method`, `metric`, `value`; also read are `source`, `engine`, `engine_version`,
`n_gpus`, `tp`, `k`, `dataset`, `batch_or_concurrency`, `baseline_value`, `ratio_as_reported`, `provenance`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cost_models import CostModelError, load_gpu, load_model
from simulator.scenario.speculation import DraftModel, Eagle, Eagle3, Medusa, Mtp, Ngram, Speculation, TableAcceptance
from simulator.study.validation.accepting import geometric, made_from, shipped
from simulator.study.validation.benchmarks import Benchmark, closed_loop, offline
from simulator.study.validation.cells import Cells, NotSimulatedError
from simulator.study.validation.setting import Engine, Row, Setting
from simulator.study.validation.unsaid import engine_of

COLUMNS = frozenset({"model", "gpu", "draft_or_method", "metric", "value"})

#: Kinds of metrics, by a pattern of how they are called.
_METRICS = {
    "acceptance_length": re.compile(r"accept(ance|ed) length|tokens per step"),
    "tpot_mean_ms": re.compile(r"tpot"),
    "output_tok_s": re.compile(r"output tok/s"),
    "decode_tok_s": re.compile(r"decode tok/s"),
}
#: Methods, by a pattern of how they are called; the first that is found.
_METHODS: tuple[tuple[str, type[Eagle3 | Eagle | Ngram | Mtp | Medusa]], ...] = (
    (r"eagle-?3", Eagle3),
    (r"eagle", Eagle),
    (r"n-?gram|prompt.lookup", Ngram),
    (r"mtp|multi-token", Mtp),
    (r"medusa", Medusa),
)
_PLAIN = re.compile(r"vanilla|normal decoding|no speculation|baseline")
_V0 = re.compile(r"0\.[0-7](\.|$)")
_TREE = re.compile(r"top-?k ?\d|tree")
#: The number of `1.83 (of 4)` and `1.26x tps/user`.
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)x?(?:\s*\(.*\)|\s+tps/user)?")
#: GPUs that compute as another one does, and differ in NVLink alone.
_TWINS = {"A800-SXM4-80GB": "A100-SXM4-80GB"}
#: Rows to which cost_models/hosts/vllm.yaml has its terms of proposing fitted: by a part of their provenance, and k.
_FITTED = {"#20780": (2, 7)}
#: Running sequences of SGLang's servers that speculate ("Max running requests is reset to 48", server_args.py).
_SGLANG_SEQS = 48
#: The GPU of rows that do not state it.
_UNSTATED_GPU = "H100"


@dataclass(frozen=True, slots=True)
class Line:
    """A row as it stands there. `metric` is its kind, empty if it is not compared; `drafts` is k, where that is one."""

    cells: Cells
    metric: str
    method: str
    drafts: int | None

    @property
    def plain(self) -> bool:
        """Is it of a run without speculation?"""
        return bool(_PLAIN.search(self.method.lower())) or self.drafts == 0

    def text(self, name: str) -> str:
        return self.cells.text(name) or ""

    def number(self, name: str) -> float | None:
        """The number in a column; None if it is empty or holds something else, such as a range."""
        found = _NUMBER.fullmatch(self.text(name))
        return float(found[1]) if found else None

    @property
    def deployment(self) -> tuple[str, ...]:
        """What rows with the same baseline have alike."""
        return tuple(self.text(name) for name in ("source", "model", "engine", "batch_or_concurrency"))

    @property
    def series(self) -> tuple[str, ...]:
        """What rows of one run have alike. The GPU is not in it: acceptance does not depend on it."""
        alike = ("source", "model", "draft_or_method", "k", "dataset")
        return tuple(self.text(name).lower() for name in alike)


def rows_of(path: Path, rows: Sequence[tuple[int, dict[str, str]]]) -> list[Row]:
    """The rows of a file, given as line numbers and cells. Raises InputError for a number that is none."""
    lines = [_line(f"{path}:{number}", cells) for number, cells in rows]
    lengths = {line.series: line.number("value") for line in lines if line.metric == "acceptance_length"}
    baselines = {(*line.deployment, line.metric): line.number("value") for line in lines if line.plain}
    return [_row(line, lengths.get(line.series), baselines.get((*line.deployment, line.metric))) for line in lines]


def _line(where: str, raw: dict[str, str]) -> Line:
    cells = Cells(where, {key: value for key, value in raw.items() if key and isinstance(value, str)})
    metric = (cells.text("metric") or "").lower()
    kind = next((name for name, pattern in _METRICS.items() if pattern.search(metric)), "")
    k = cells.text("k")
    drafts = None if k is None or not re.fullmatch(r"\d+(\.0)?", k) else cells.count("k", least=0)
    return Line(cells, kind, cells.text("draft_or_method") or "", drafts)


def _row(line: Line, length: float | None, baseline: float | None) -> Row:
    assumptions: list[str] = []
    setting: Setting | None = None
    plain: Setting | None = None
    reason = ""
    given: tuple[str, ...] = ()
    measured: dict[str, float] = {}
    label = "none" if line.plain else _label(line.method) or "unstated"
    try:
        measured = _measured(line, line.number("baseline_value") or baseline)
        without = _setting(line, assumptions)
        if line.plain:
            setting = without
        else:
            setting, given = _speculating(line, without, length, assumptions)
            plain = without if any("speed_up" in name for name in measured) else None
    except (NotSimulatedError, CostModelError) as error:
        reason = str(error)
    texts = {name: line.text(name) for name in ("gpu", "model", "engine", "source")}
    texts["engine"] = f"{texts['engine']} {line.text('engine_version')}".strip()
    return Row(
        where=line.cells.where,
        run=line.cells.where,
        stage=0,
        labels={name: text for name, text in (texts | {"method": label}).items() if text},
        measured=measured,
        setting=setting,
        staged=False,
        reason=reason,
        plain=plain,
        note="the GPU is not stated" if _unstated(line) and line.metric != "acceptance_length" and setting else "",
        assumptions=tuple(assumptions),
        given=given,
        by_sign="the engine batched as it liked" if "client label" in line.text("batch_or_concurrency") else "",
    )


def _measured(line: Line, baseline: float | None) -> dict[str, float]:
    """The metrics of a row: its own, that of the run without speculation, and the speed-up between the two."""
    value = line.number("value")
    if not line.metric:
        raise NotSimulatedError(f"metric {line.text('metric')!r} is not compared")
    if value is None or value <= 0:
        raise NotSimulatedError(f"value {line.text('value')!r} is no number above 0")
    if line.metric == "acceptance_length":
        ratio = line.number("ratio_as_reported")
        return {line.metric: value} | ({} if ratio is None else {"tpot_speed_up": ratio})
    name = line.metric
    if name == "decode_tok_s":
        name, value, baseline = "tpot_mean_ms", _gap_ms(line, value), baseline and _gap_ms(line, baseline)
    found = {name: value}
    if baseline and not line.plain:
        found[f"plain_{name}"] = baseline
        if name == "tpot_mean_ms":
            found["tpot_speed_up"] = baseline / value
        else:
            found["output_speed_up"] = value / baseline
    return found


def _gap_ms(line: Line, rate: float) -> float:
    """Time between a client's tokens, if all clients together get so many a second."""
    return 1e3 * (_clients(line) or 1) / rate


def _setting(line: Line, assumptions: list[str]) -> Setting:
    """The server without speculation, and what it was sent."""
    engine = engine_of(line.text("engine") or "vllm")
    if engine is None:
        raise NotSimulatedError(f"unknown engine {line.text('engine')!r}")
    old = engine == "vllm" and bool(_V0.match(line.text("engine_version")))
    model, weights = _model(line.text("model"))
    gpu = _gpu(line, assumptions)
    load = _benchmark(line, model)
    if line.metric != "acceptance_length":  # which lengths have no part in
        assumptions.append(load.assumption)
    return Setting(
        engine=engine,
        model=model,
        gpu=gpu,
        tensor_parallel=line.cells.count("tp", "n_gpus") or 1,
        weights=weights,
        kv_cache="auto",
        max_num_seqs=load.max_num_seqs or 256,
        max_num_batched_tokens=8192,
        max_model_len=None,
        gpu_memory_utilization=0.9,
        prefix_caching=False,
        async_scheduling=_asynchronous(engine, line.text("engine_version"), assumptions),
        host="vllm-v0" if old else "vllm",
        front_end=line.metric == "tpot_mean_ms",  # rates are of engines called in their own process
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        prompt_pool=None,
        load=load.load,
    )


def _speculating(
    line: Line, plain: Setting, length: float | None, assumptions: list[str]
) -> tuple[Setting, tuple[str, ...]]:
    """The server of `plain` as it speculated, and which of the row's metrics went into it."""
    proposer, given = _proposer(line, plain.model, length, assumptions)
    if plain.engine == "vllm":
        return replace(plain, speculation=proposer), given
    assumptions.append(f"{line.text('engine')}: speculates under vLLM's scheduler, the only one that does here")
    seqs, asynchronous = plain.max_num_seqs, plain.async_scheduling
    if plain.engine == "sglang":
        assumptions.append("SGLang: speculates with 48 sequences at most and without overlap, its defaults (0.5)")
        seqs, asynchronous = min(seqs, _SGLANG_SEQS), False
    server = replace(plain, engine="vllm", max_num_seqs=seqs, async_scheduling=asynchronous)
    return replace(server, speculation=proposer), given


def _model(text: str) -> tuple[str, str]:
    """(model, weights) of `BF16 Llama-3.3-70B + public EAGLE3`."""
    stated = re.match(r"(bf16|fp16|fp8|int8)\s+", text.lower())
    name = re.split(r"\s+\+", text[stated.end() :] if stated else text)[0].strip()
    return load_model(name).name, stated[1] if stated else "auto"


def _gpu(line: Line, assumptions: list[str]) -> str:
    if _unstated(line):
        assumptions.append(f"GPU not stated: {_UNSTATED_GPU}")
        return _gpu_name(_UNSTATED_GPU)
    name = re.sub(r"\s*\(.*\)", "", line.text("gpu"))
    if name != line.text("gpu"):
        assumptions.append(f"GPU: {line.text('gpu')}")
    bare = name.removeprefix("NVIDIA ")
    if bare in _TWINS and (line.cells.count("tp", "n_gpus") or 1) == 1:
        assumptions.append(f"{bare}: computes as {_TWINS[bare]} does")
        name = _TWINS[bare]
    return _gpu_name(name)


@cache
def _gpu_name(name: str) -> str:
    return load_gpu(name).name


def _unstated(line: Line) -> bool:
    return not line.text("gpu") or "not stated" in line.text("gpu").lower()


def _benchmark(line: Line, model: str) -> Benchmark:
    if "client label" in line.text("batch_or_concurrency"):
        found = offline(line.text("provenance"))
        if found is None:
            raise NotSimulatedError("what an offline run of that kind sends is not known")
        return found
    clients = _clients(line)
    if clients is None and line.metric != "acceptance_length":
        raise NotSimulatedError(f"batch_or_concurrency {line.text('batch_or_concurrency')!r} is no number of clients")
    return closed_loop(line.text("dataset"), clients or 1, model)


def _clients(line: Line) -> int | None:
    text = line.text("batch_or_concurrency")
    return line.cells.count("batch_or_concurrency") if re.fullmatch(r"\d+(\.0)?", text) else None


def _asynchronous(engine: Engine, version: str, assumptions: list[str]) -> bool:
    """Whether the engine formed a step while the one before ran. vLLM did from 0.14 on, SGLang and TensorRT-LLM do."""
    number = re.match(r"0\.(\d+)", version)
    if engine != "vllm" or (number and int(number[1]) >= 14):
        return True
    if _V0.match(version):
        assumptions.append("vLLM V0: V1's scheduler stands in, without asynchronous scheduling, with V0's host")
    else:
        assumptions.append("vLLM V1 before 0.14: without asynchronous scheduling")
    return False


def _label(method: str) -> str:
    """The method's name in a scenario, where it is known; else as written."""
    return next((kind.TAG for pattern, kind in _METHODS if re.search(pattern, method.lower())), method)


def _proposer(
    line: Line, model: str, length: float | None, assumptions: list[str]
) -> tuple[Speculation, tuple[str, ...]]:
    """The proposer, and which metrics went into its acceptance."""
    if _TREE.search(line.method.lower()):
        raise NotSimulatedError("acceptance of a tree of drafts is not stated, and not that of a chain")
    if line.drafts is None:
        raise NotSimulatedError(f"k {line.text('k')!r} is no number of drafts")
    kind = next((kind for pattern, kind in _METHODS if re.search(pattern, line.method.lower())), None)
    tag = DraftModel.TAG if kind is None else kind.TAG
    predicted = line.metric == "acceptance_length" and line.number("ratio_as_reported") is None
    if predicted or length is None:
        rates, given = _shipped(line, tag, model, assumptions)
    else:
        rates, given = _geometric(length, line.drafts), ("acceptance_length", *_fitted(line))
        assumptions.append("acceptance length: measured in the same run, spread geometrically over the drafts")
    acceptance = TableAcceptance(cumulative=rates)
    if kind is None:
        return DraftModel(
            num_speculative_tokens=line.drafts, acceptance=acceptance, model=load_model(line.method).name
        ), given
    return kind(num_speculative_tokens=line.drafts, acceptance=acceptance), given


def _fitted(line: Line) -> tuple[str, ...]:
    """The metrics of a row that the host's terms were fitted to."""
    fitted = any(source in line.text("provenance") and line.drafts in ks for source, ks in _FITTED.items())
    return ("tpot_mean_ms", "tpot_speed_up") if fitted else ()


def _geometric(length: float, drafts: int) -> tuple[float, ...]:
    try:
        return geometric(length, drafts)
    except ValueError as error:
        raise NotSimulatedError(str(error)) from None


def _shipped(line: Line, method: str, model: str, assumptions: list[str]) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Rates of a shipped table, and what it was made from."""
    assert line.drafts is not None
    table = shipped(method, model, line.text("dataset"))
    if table is None:
        raise NotSimulatedError(f"no shipped table says how many drafts of {method} on {model} are accepted")
    if len(table.cumulative) < line.drafts:
        raise NotSimulatedError(f"the shipped table {table.name} ends at draft {len(table.cumulative)}")
    same = line.metric == "acceptance_length" and made_from(table, line.text("provenance"))
    assumptions.append(f"acceptance: shipped table {table.name}" + (", made from this very row" if same else ""))
    return table.cumulative[: line.drafts], ("acceptance_length",) if same else ()
