"""Reader of measured rows of speculative decoding: CSV files in which a row has one metric, named in a column.

Columns: `model`, `gpu`, `draft_or_method`, `metric`, `value`; also read are `source`, `engine`, `engine_version`,
`n_gpus`, `tp`, `k`, `dataset`, `batch_or_concurrency`, `unit`, `baseline_value`, `ratio_as_reported`, `provenance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cost_models import CostModelError
from simulator.scenario.speculation import Medusa, Ngram
from simulator.validation.cells import NotSimulatedError
from simulator.validation.setting import Row, Setting
from simulator.validation.speculation.lines import Line, read_line
from simulator.validation.speculation.matching import baseline_of, length_of
from simulator.validation.speculation.proposers import method_of, proposer_of
from simulator.validation.speculation.serving import server_of

COLUMNS = frozenset({"model", "gpu", "draft_or_method", "metric", "value"})

#: Most running sequences of SGLang's servers that speculate ("Max running requests is reset to 48", server_args.py).
_SGLANG_SEQS = 48


def rows_of(path: Path, rows: Sequence[tuple[int, dict[str, str]]]) -> list[Row]:
    """Return the rows of a file, given as line numbers and cells. Raises InputError for an invalid number."""
    lines = [read_line(f"{path}:{number}", cells) for number, cells in rows]
    return [_row(line, lines) for line in lines]


def _row(line: Line, lines: Sequence[Line]) -> Row:
    assumptions: list[str] = []
    setting: Setting | None = None
    plain: Setting | None = None
    reason = ""
    given: tuple[str, ...] = ()
    measured: dict[str, float] = {}
    try:
        measured = line.measured(baseline_of(line, lines))
        without = server_of(line, assumptions)
        if line.plain:
            setting = without
        else:
            setting, given = _speculating(line, without, length_of(line, lines), assumptions)
            plain = without if any("speed_up" in name for name in measured) else None
    except (NotSimulatedError, CostModelError) as error:
        reason = str(error)
    texts = {name: line.text(name) for name in ("gpu", "model", "engine", "source")}
    texts["engine"] = f"{texts['engine']} {line.text('engine_version')}".strip()
    return Row(
        where=line.cells.where,
        run=line.cells.where,
        stage=0,
        labels={name: text for name, text in (texts | {"method": method_of(line)}).items() if text},
        measured=measured,
        setting=setting,
        staged=False,
        reason=reason,
        plain=plain,
        note="" if line.gpu or line.metric.kind == "acceptance_length" or setting is None else "the GPU is not stated",
        assumptions=tuple(assumptions),
        given=given,
        by_sign="the engine chose its batches" if "client label" in line.text("batch_or_concurrency") else "",
        steady=line.alone,
        groups=line.cells.texts("group"),
    )


def _speculating(
    line: Line, plain: Setting, length: tuple[float, bool] | None, assumptions: list[str]
) -> tuple[Setting, tuple[str, ...]]:
    """Return the server of `plain` with speculation, and the metrics of the row that were used to set it."""
    proposer, given = proposer_of(line, plain.model, length, assumptions)
    server = replace(plain, speculation=proposer)
    if plain.engine == "sglang":
        assumptions.append("SGLang: speculates with 48 sequences at most and without overlap, its defaults (0.5)")
        seqs = min(plain.max_num_seqs or _SGLANG_SEQS, _SGLANG_SEQS)
        server = replace(server, max_num_seqs=seqs, async_scheduling=False)
    if server.async_scheduling and isinstance(proposer, Ngram | Medusa):
        assumptions.append(f"{proposer.TAG}: without asynchronous scheduling, as vLLM schedules such drafts")
        server = replace(server, async_scheduling=False)
    return server, given
