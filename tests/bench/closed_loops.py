"""Effect of each assumption about clients of a closed loop: a table of docs/accuracy.md.

`python -m tests.bench.closed_loops`, 70 s of CPU time. Assumptions are added one by one, up to those
of `servesim validate`; a cell has the median error of TTFT and, in brackets, TPOT, in %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from simulator.common.shipped import find_measured
from simulator.scenario.lengths import Fixed, LogNormal
from simulator.validation.errors import summed_up
from simulator.validation.measured import read_rows
from simulator.validation.run import compare
from simulator.validation.setting import Row, Setting

#: Columns: rows by engine, as the file calls it, and model.
_COLUMNS = {
    "vLLM 0.12, Qwen3-32B": ("vllm", "qwen3-32b"),
    "TensorRT-LLM, Qwen3-32B": ("trtllm", "qwen3-32b"),
    "TensorRT-LLM, Llama-3.1-8B": ("trtllm", "llama-3.1-8b"),
    "SGLang, Qwen3-32B": ("sglang", "qwen3-32b"),
}
_BUDGET = 8192
_SPREAD = 0.01


def without_first_token(setting: Setting) -> Setting:
    """Return the setting with the stated prompt lengths, without the first token that Llama's tokeniser adds."""
    assert isinstance(setting.prompt_tokens, Fixed)
    extra = int("llama" in setting.model)
    return replace(setting, prompt_tokens=Fixed(setting.prompt_tokens.value - extra))


def without_first_requests(setting: Setting) -> Setting:
    """Return the setting without measurements of the first request of each client."""
    load = setting.load
    assert load.concurrency is not None
    return replace(setting, load=replace(load, warmup=min(load.concurrency, load.requests // 2)))


def with_default_budget(setting: Setting) -> Setting:
    """Return the setting with a token budget of 8,192."""
    return replace(setting, max_num_batched_tokens=_BUDGET)


def drifting(setting: Setting) -> Setting:
    """Return the setting with lengths spread by 1%, for vLLM's scheduler."""
    prompts, outputs = setting.prompt_tokens, setting.output_tokens
    assert isinstance(prompts, Fixed) and isinstance(outputs, Fixed)
    laws = (LogNormal(mean=law.value, cv=_SPREAD) for law in (prompts, outputs))
    return replace(setting, engine="vllm", **dict(zip(("prompt_tokens", "output_tokens"), laws, strict=True)))


#: Assumptions that are removed, from the last line of the table to the first.
_TAKEN_BACK: tuple[tuple[str, Callable[[Setting], Setting]], ...] = (
    ("and Llama's first token", lambda setting: setting),
    ("and all requests count", without_first_token),
    ("and a step of one prompt", without_first_requests),
    ("exact lengths, a budget of 8,192, own scheduler, first requests left out", with_default_budget),
    ("the same with lengths spread by 1%, under vLLM's scheduler", drifting),
)


def main() -> None:
    """Print the table."""
    rows = [row for row in read_rows(find_measured(Path("closed_loop_h100.csv"))) if _column(row)]
    print("| assumed |", " | ".join(_COLUMNS), "|")
    print("|---" * (1 + len(_COLUMNS)) + "|")
    lines = []
    for title, take_back in _TAKEN_BACK:
        rows = [replace(row, setting=take_back(row.setting)) for row in rows if row.setting is not None]
        lines.append(f"| {title} | {' | '.join(_cells(rows))} |")
    for line in reversed(lines):
        print(line)


def _column(row: Row) -> str:
    """Return the column of a row; None if it is in no column, or cannot be simulated."""
    setting = row.setting
    what = None if setting is None else (row.labels["engine"], setting.model)
    return next((name for name, of in _COLUMNS.items() if of == what), "")


def _cells(rows: list[Row]) -> list[str]:
    groups = summed_up(compare([replace(row, groups=(_column(row),)) for row in rows]))
    errors = ([groups[name][metric]["median_ape"] for metric in ("ttft_mean_ms", "tpot_mean_ms")] for name in _COLUMNS)
    return [f"{ttft:.3g} ({tpot:.2g})" for ttft, tpot in errors]


if __name__ == "__main__":
    main()
