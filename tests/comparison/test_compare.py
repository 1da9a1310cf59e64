"""Designs side by side: the same requests, and nothing mixed in silence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.cli import main
from simulator.comparison import Comparison, attribution_figure, compare, load_designs
from simulator.comparison.differences import NO_DIFFERENCES, AllowedDifferences
from simulator.comparison.document import compared_metrics, document_of
from simulator.comparison.folders import check_folder
from simulator.comparison.report import print_comparison
from simulator.errors import InputError
from simulator.results.metrics import SCHEMA_VERSION
from simulator.study.same_requests import difference, fingerprint
from simulator.study.seeds import SeedOptions
from tests.helpers import request_table

MIXED = AllowedDifferences(decoding=True)
SLOW = """\
name: slow
model: llama-3.1-8b
workload:
  arrivals: {process: poisson, rate: 5}
  requests: 60
  prompt_tokens: {distribution: geometric, mean: 200}
  output_tokens: {distribution: geometric, mean: 20}
deployment:
  pools:
    main:
      gpu: h100-sxm
      scheduler: {version: none, max_num_seqs: 8}
      cost_model: {kind: linear, base: 20ms, per_prefill_token: 100us}
slo: {ttft: 200ms}
cost: {usd_per_gpu_hour: 2.5}
"""
FAST = "extends: slow.yaml\nname: fast\ndeployment: {pools: {main: {cost_model: {base: 10ms}}}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "slow.yaml").write_text(SLOW)
    (tmp_path / "fast.yaml").write_text(FAST)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def design(folder: Path, text: str, name: str = "other") -> str:
    """Return a copy of `slow.yaml` with `text`."""
    (folder / f"{name}.yaml").write_text(f"extends: slow.yaml\nname: {name}\n{text}\n")
    return f"{name}.yaml"


def compared(*names: str, **options: Any) -> dict[str, Any]:
    return document_of(comparison_of(names, **options))


def comparison_of(
    names: Sequence[str],
    overrides: Sequence[str] = (),
    trace: Path | None = None,
    baseline: str | None = None,
    allowed: AllowedDifferences = NO_DIFFERENCES,
    **options: Any,
) -> Comparison:
    designs = load_designs(names, overrides, trace, allowed)
    return compare(designs, SeedOptions(**options), baseline=baseline, allowed=allowed)


def entry_of(document: dict[str, Any], metric: str, of: str = "fast") -> dict[str, Any]:
    return next(entry for entry in document["paired"] if (entry["design"], entry["metric"]) == (of, metric))


def test_a_faster_design_is_faster_under_every_seed(folder: Path) -> None:
    document = compared("slow.yaml", "fast.yaml", seeds=4)
    assert (document["baseline"], document["seeds"], list(document["designs"])) == (
        "slow",
        [0, 1, 2, 3],
        ["slow", "fast"],
    )
    entry = entry_of(document, "latency.itl_ms.p50")
    assert (entry["method"], entry["count"]) == ("seeds", 4)
    assert entry["ci95"][0] <= entry["difference"] <= entry["ci95"][1] < 0
    slow, fast = (document["metrics"][name]["latency.itl_ms.p50"] for name in ("slow", "fast"))
    assert len(slow["values"]) == 4
    assert slow["lowest"] <= slow["median"] <= slow["highest"]
    assert entry["difference"] == pytest.approx(np.mean(fast["values"]) - np.mean(slow["values"]))
    assert entry["relative"] == pytest.approx(entry["difference"] / np.mean(slow["values"]))
    assert document["metrics"]["fast"]["cost.gpu_hours"]["median"] > 0


def test_the_designs_objects_are_those_of_a_run(folder: Path) -> None:
    document = compared("slow.yaml", "fast.yaml", seeds=2)
    for name in ("slow", "fast"):
        assert document["designs"][name] == simulator.run(f"{name}.yaml").summary


def test_seeds_begin_at_the_scenarios_own(folder: Path) -> None:
    document = compared("slow.yaml", "fast.yaml", seeds=2, overrides=("seed=7",))
    assert document["seeds"] == [7, 8]
    assert document["designs"]["slow"]["seed"] == 7


def test_the_baseline_is_the_first_or_the_named_one(folder: Path) -> None:
    document = compared("slow.yaml", "fast.yaml", seeds=2, baseline="fast")
    assert document["baseline"] == "fast"
    assert entry_of(document, "latency.itl_ms.p50", "slow")["difference"] > 0
    with pytest.raises(InputError, match=r"--baseline fst: no design has that name; did you mean fast\?"):
        comparison_of(("slow.yaml", "fast.yaml"), baseline="fst")


def test_a_design_equals_itself(folder: Path) -> None:
    document = compared("slow.yaml", design(folder, "", "same"), seeds=3)
    for entry in document["paired"]:
        assert (entry["difference"], entry["ci95"]) == (0, [0, 0]), entry["metric"]


def test_a_trace_runs_once_and_is_paired_by_request(folder: Path) -> None:
    comparison = comparison_of(("slow.yaml", "fast.yaml"), seeds=5, trace=trace(folder))
    assert [len(own) for own in comparison.samples] == [1, 1]
    document = document_of(comparison)
    assert document["warnings"][0]["code"] == "requests_fixed"
    mean, tail = (entry_of(document, f"latency.ttft_ms.{name}") for name in ("mean", "p99"))
    assert (mean["method"], mean["count"]) == ("requests", 160)
    assert mean["ci95"][0] < mean["difference"] < mean["ci95"][1] < 0
    ours, theirs = (document["designs"][name]["latency"]["ttft_ms"]["mean"] for name in ("fast", "slow"))
    assert mean["difference"] == pytest.approx(ours - theirs)
    assert (tail["method"], tail["ci95"]) == ("none", None)


def trace(folder: Path) -> str:
    rows = "".join(f"{i / 10},{100 + 7 * i % 50},{5 + i % 3}\n" for i in range(160))
    (folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    return "trace.csv"


def test_attribution_is_pooled_over_seeds(folder: Path) -> None:
    document = compared("slow.yaml", "fast.yaml", seeds=3)
    found = document["attribution"]["slow"]
    assert found["mean"]["requests"] == 180
    for parts in found.values():
        inner = [value for name, value in parts.items() if name not in ("requests", "e2e_ms")]
        assert sum(inner) == pytest.approx(parts["e2e_ms"])
    first = document["designs"]["slow"]["attribution"]["mean"]
    assert found["mean"]["e2e_ms"] != first["e2e_ms"]


def test_a_stall_that_is_not_known_is_no_stall_of_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "deployment: {pools: {main: {pipeline_parallel: 2, scheduler: {async_scheduling: false}}}}"
    comparison = comparison_of((design(folder, text), "slow.yaml"), seeds=2)
    document = document_of(comparison)
    metrics = [metric.name for metric in compared_metrics(comparison)]
    assert metrics.index("latency.itl_ms.max") + 1 == metrics.index("latency.stall_ms.mean")
    assert ["latency.stall_ms.mean" in document["metrics"][name] for name in ("other", "slow")] == [False, True]
    assert not [entry for entry in document["paired"] if "stall" in entry["metric"]]
    assert ["stall_ms" in document["attribution"][name]["mean"] for name in ("other", "slow")] == [False, True]
    attribution_figure(document)
    print_comparison(document, compared_metrics(comparison))
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("stall mean, ms"))
    assert row.split()[3] == "-"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workload: {requests: 70}", r"workload\.requests: 70 in other, 60 in slow; designs are compared over"),
        ("workload: {max_tokens: 9}", r"workload\.max_tokens: 9 in other, not given in slow; .* --mixed-decoding$"),
        (
            "workload: {output_tokens: {mean: 9}}",
            r"output_tokens\.mean: 9.* in other, 20.* in slow; .* --mixed-decoding$",
        ),
        ("workload: {arrivals: {rate: 6}}", r"workload\.arrivals\.rate: 6\.0 in other, 5\.0 in slow"),
        ("model: {name: llama-3.1-8b, weights: fp8}", r"model\.weights: fp8 in other, auto in slow"),
        (
            "deployment: {pools: {main: {model: {name: llama-3.1-8b, weights: fp8}}}}",
            r"^deployment\.pools\.main\.model: llama-3\.1-8b \(weights fp8, kv_cache auto\) in other, and slow serves",
        ),
        (
            "deployment: {pools: {small: {gpu: h100-sxm, model: llama-3.1-70b}}}",
            r"^deployment\.pools\.small\.model: llama-3\.1-70b .* in other, and slow serves llama-3\.1-8b ",
        ),
        ("seed: 4", r"seed: 4 in other, 0 in slow"),
        ("slo: {ttft: 100ms}", r"slo\.ttft\.limit: 100ms in other, 200ms in slow"),
        ("slo: null", r"slo\.ttft\.limit: not given in other, 200ms in slow"),
        ("run: {warmup: 1s}", r"run\.warmup: 1s in other, none in slow"),
        (
            "deployment: {pools: {main: {scheduler: {max_model_len: 210, context_overflow: cut}}}}",
            r"other and slow do not serve the same requests: output_tokens of request \d+ is .* --mixed-decoding$",
        ),
    ],
)
def test_what_must_not_be_mixed_in_silence(folder: Path, text: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        comparison_of(("slow.yaml", design(folder, text)), seeds=1)


@pytest.mark.parametrize("text", ["workload: {requests: 70}", "workload: {arrivals: {rate: 6}}", "seed: 4"])
def test_mixed_decoding_accepts_nothing_else(folder: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"designs are compared over the same requests(?!.*--mixed-decoding)"):
        comparison_of(("slow.yaml", design(folder, text)), seeds=1, allowed=MIXED)


def test_a_pool_may_name_the_model_that_the_other_design_serves(folder: Path) -> None:
    text = "deployment: {pools: {main: {model: llama-3.1-8b}}}"
    assert len(load_designs(["slow.yaml", design(folder, text)])) == 2


def test_two_designs_with_names_of_their_own(folder: Path) -> None:
    with pytest.raises(InputError, match="needs two scenarios or more"):
        load_designs(["slow.yaml"])
    with pytest.raises(InputError, match=r"slow\.yaml and again\.yaml are both named slow: give each a name"):
        load_designs(["slow.yaml", design(folder, "", "again")], ("name=slow",))


def test_other_numbers_of_gpus_are_told(folder: Path) -> None:
    document = compared("slow.yaml", design(folder, "deployment: {pools: {main: {replicas: 2}}}"), seeds=1)
    told = [warning for warning in document["warnings"] if warning["code"] == "gpus_differ"]
    assert "slow 1, other 2" in told[0]["text"]
    assert not [
        each for each in compared("slow.yaml", "fast.yaml", seeds=1)["warnings"] if each["code"] == "gpus_differ"
    ]


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (
            "async_differs",
            "deployment: {pools: {main: {scheduler: {async_scheduling: true}}}}",
            "(slow no, other yes), which shortens their steps by about the CPU's time of a step",
        ),
        (
            "cost_models_differ",
            "deployment: {pools: {main: {cost_model: {kind: roofline}}}}",
            "(slow: linear, host 2 ms; other: roofline, calibration auto, host vllm)",
        ),
        (
            "gpus_of_one_price",
            "deployment: {pools: {main: {gpu: a100-sxm-80gb}}}",
            "h100-sxm, a100-sxm-80gb have one price, 2.5 USD an hour",
        ),
        (
            "completed_differ",
            "deployment: {pools: {main: {scheduler: {max_model_len: 300}}}}",
            "(slow 120 of 120, other ",
        ),
    ],
)
def test_what_is_easily_taken_for_an_effect_of_the_design_is_told(
    folder: Path, code: str, text: str, expected: str
) -> None:
    (folder / "slow.yaml").write_text(SLOW.replace("100us}", "100us, host: 2ms}"))
    document = compared("slow.yaml", design(folder, text), seeds=2)
    told = {warning["code"]: warning["text"] for warning in document["warnings"]}
    assert expected in told[code]
    others = {"async_differs", "cost_models_differ", "gpus_of_one_price", "completed_differ", "gpus_differ"} - {code}
    assert not others & set(told)


def test_engines_stand_above_the_table_and_equal_ones_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defaults that follow from the GPU differ without a word in the scenarios."""
    pool = "{{main: {{gpu: {}, scheduler: {{version: vllm-0.33}}}}}}"
    (folder / "slow.yaml").write_text(SLOW.replace("{version: none, max_num_seqs: 8}", "{version: vllm-0.33}"))
    other = design(folder, f"deployment: {{pools: {pool.format('a100-sxm-80gb')}}}")
    assert main(["compare", "slow.yaml", "fast.yaml", other, "--seeds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("scheduler in slow, fast: vLLM 0.33, ") and "8,192 tokens and 1,024 seq" in lines[1]
    assert lines[2].startswith("scheduler in other: vLLM 0.33, ") and "2,048 tokens and 256 seq" in lines[2]
    assert main(["compare", "slow.yaml", "fast.yaml", "--seeds", "1"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1].startswith("scheduler: vLLM 0.33, ") and text.count("vLLM 0.33") == 1
    assert "USD per 1k tokens" in text and "USD per 1M output tokens" in text


def test_means_that_seeds_give_an_interval_are_not_called_uncertain(folder: Path) -> None:
    """A run of so high a load that not even its means have an interval."""
    (folder / "slow.yaml").write_text(SLOW.replace("requests: 60", "requests: 400").replace("rate: 5", "rate: 9"))
    one = {each["code"]: each["text"] for each in compared("slow.yaml", "fast.yaml", seeds=1)["warnings"]}
    assert "not even means have an interval; simulate more requests or more seeds" in one["few_samples"]
    document = compared("slow.yaml", "fast.yaml", seeds=2)
    assert "few_samples" not in {each["code"] for each in document["warnings"]}
    assert entry_of(document, "latency.ttft_ms.mean")["ci95"] is not None


@pytest.mark.parametrize(("gpu", "told"), [("l40s", True), ("h100-sxm", False)])
def test_the_gpu_of_a_drafter_has_the_same_price_too(folder: Path, gpu: str, told: bool) -> None:
    drafter = f"{{method: draft_model, model: llama-3.2-1b, gpu: {gpu}, num_speculative_tokens: 1, pass_time: 1ms"
    text = f"deployment: {{pools: {{main: {{speculation: {drafter}, acceptance: {{law: iid, alpha: 0.5}}}}}}}}}}"
    notes = {each["code"]: each["text"] for each in compared("slow.yaml", design(folder, text), seeds=1)["warnings"]}
    assert ("gpus_of_one_price" in notes) == told
    assert not told or "h100-sxm, l40s have one price" in notes["gpus_of_one_price"]


def test_one_price_of_two_kinds_is_told_of_two_prices_not(folder: Path) -> None:
    text = "deployment: {pools: {main: {gpu: a100-sxm-80gb}}}\ncost: {usd_per_gpu_hour: 1.5}"
    codes = [each["code"] for each in compared("slow.yaml", design(folder, text), seeds=1)["warnings"]]
    assert "gpus_of_one_price" not in codes


def test_scheduling_ahead_of_a_cpu_that_takes_no_time_makes_no_difference(folder: Path) -> None:
    text = "deployment: {pools: {main: {scheduler: {async_scheduling: true}}}}"
    codes = [each["code"] for each in compared("slow.yaml", design(folder, text), seeds=1)["warnings"]]
    assert "async_differs" not in codes


def test_how_many_were_completed_is_a_row_where_it_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*names: str) -> list[str]:
        comparison = comparison_of(names, seeds=1)
        print_comparison(document_of(comparison), compared_metrics(comparison))
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("completed ")]

    short = design(folder, "deployment: {pools: {main: {scheduler: {max_model_len: 300}}}}")
    assert rows("slow.yaml", "fast.yaml") == []
    found = rows("slow.yaml", short)
    assert len(found) == 2  # the value, and the difference
    assert found[0].split()[1] == "60"
    assert found[1].split()[1].startswith("-")


def test_warnings_of_runs_are_told_once_with_their_seeds(folder: Path) -> None:
    overloaded = design(folder, "deployment: {pools: {main: {cost_model: {base: 500ms}}}}")
    document = compared("slow.yaml", overloaded, seeds=2)
    codes = [warning["code"] for warning in document["warnings"]]
    assert len(codes) == len(set(codes))
    assert any("other (2 of 2 seeds): " in warning["text"] for warning in document["warnings"])


def test_requests_are_the_same_or_what_differs_is_named() -> None:
    one = request_table([0, 5], [10, 20], [3, 4])
    assert difference(one, request_table([0, 5], [10, 20], [3, 4])) is None
    assert difference(one, request_table([0], [10], [3])) == "2 and 1 requests"
    assert difference(one, request_table([0, 5], [10, 21], [3, 4])) == "prompt_tokens of request 1 is 20 and 21"
    with_priority = request_table([0, 5], [10, 20], [3, 4], priority=[0, 1])
    assert difference(one, with_priority) == difference(with_priority, one) == "priority"
    assert fingerprint(one) == fingerprint(request_table([0, 5], [10, 20], [3, 4]))
    assert (
        len({fingerprint(one), fingerprint(with_priority), fingerprint(request_table([0, 6], [10, 20], [3, 4]))}) == 3
    )


# --- speculation

DRAFTS = "{method: eagle, num_speculative_tokens: 3, pass_time: 1ms, acceptance: {law: iid, alpha: 0.8}%s}"


def drafting(folder: Path, name: str = "other", more: str = "", also: str = "") -> str:
    """Return a copy of `slow.yaml` with speculation."""
    return design(folder, f"deployment: {{pools: {{main: {{speculation: {DRAFTS % more}}}}}}}\n{also}", name)


def gains_of(document: dict[str, Any]) -> dict[str, Any]:
    (entry,) = document["speed_up"]
    return dict(entry)


def test_the_speed_up_is_that_of_the_same_design_without_speculation(folder: Path) -> None:
    document = compared("slow.yaml", drafting(folder), seeds=3)
    entry = gains_of(document)
    assert (entry["design"], entry["against"], entry["also_differs"]) == ("other", "slow", [])
    values = [document["metrics"][name]["latency.tpot_ms.mean"]["values"] for name in ("slow", "other")]
    ratios = np.divide(*values)
    assert entry["tpot"]["speed_up"] == pytest.approx(np.exp(np.log(ratios).mean()))
    assert (entry["tpot"]["method"], entry["tpot"]["count"]) == ("seeds", 3)
    assert 1.5 < entry["tpot"]["ci95"][0] < entry["tpot"]["speed_up"] < entry["tpot"]["ci95"][1] < 3.5
    assert entry["e2e"]["ci95"][0] > 1
    rates = [document["metrics"][name]["throughput.output_tokens_per_s"]["values"] for name in ("other", "slow")]
    assert entry["output_tokens_per_s"]["speed_up"] == pytest.approx(np.exp(np.log(np.divide(*rates)).mean()))


def test_whichever_of_the_two_is_the_baseline_it_is_the_same_speed_up(folder: Path) -> None:
    names = "slow.yaml", drafting(folder)
    assert gains_of(compared(*names, seeds=2)) == gains_of(compared(*names, seeds=2, baseline="other"))


def test_the_speed_up_of_one_run_is_paired_by_request(folder: Path) -> None:
    entry = gains_of(compared("slow.yaml", drafting(folder), seeds=1, overrides=["workload.requests=3000"]))
    assert (entry["tpot"]["method"], entry["e2e"]["method"]) == ("requests", "requests")
    assert entry["tpot"]["count"] < entry["e2e"]["count"] == 3000  # one token has no time per token after the first
    assert entry["e2e"]["ci95"][0] < entry["e2e"]["speed_up"] < entry["e2e"]["ci95"][1]
    assert (entry["output_tokens_per_s"]["method"], entry["output_tokens_per_s"]["ci95"]) == ("none", None)


def test_what_else_differs_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"deployment: {{pools: {{main: {{cost_model: {{base: 10ms}}, speculation: {DRAFTS % ''}}}}}}}"
    comparison = comparison_of(("slow.yaml", design(folder, text)), seeds=1)
    document = document_of(comparison)
    assert gains_of(document)["also_differs"] == ["deployment.pools.main.cost_model.base"]
    print_comparison(document, compared_metrics(comparison))
    printed = capsys.readouterr().out
    assert "speed-up by speculation" in printed
    assert "not by speculation alone: they also differ in deployment.pools.main.cost_model.base" in printed


def test_a_section_that_only_one_design_has_is_one_difference(folder: Path) -> None:
    pools = "deployment: {pools: {more: {gpu: h100-sxm, cost_model: {kind: linear, base: 20ms}}}}"
    entry = gains_of(compared(design(folder, pools, "plain"), drafting(folder, also="slo: {ttft: 200ms}"), seeds=1))
    assert entry["also_differs"] == ["deployment.pools.more"]


def test_what_becomes_of_drafts_varies_with_the_seed_where_a_trace_does_not(folder: Path) -> None:
    document = compared("slow.yaml", drafting(folder), seeds=3, trace=trace(folder))
    assert document["seeds"] == [0, 1, 2]
    (told,) = [each["text"] for each in document["warnings"] if each["code"] == "requests_fixed"]
    assert told.endswith("of other requests")
    slow, other = (document["metrics"][name]["latency.tpot_ms.mean"]["values"] for name in ("slow", "other"))
    assert len(set(slow)) == 1
    assert len(set(other)) == 3
    assert gains_of(document)["tpot"]["method"] == "seeds"


def test_two_that_do_not_draw_are_paired_by_request_beside_one_that_does(folder: Path) -> None:
    document = compared("slow.yaml", "fast.yaml", drafting(folder), seeds=3, trace=trace(folder))
    plain, drawn = (entry_of(document, "latency.ttft_ms.mean", of) for of in ("fast", "other"))
    assert (plain["method"], plain["count"]) == ("requests", 160)
    assert plain["ci95"][0] < plain["difference"] < plain["ci95"][1] < 0
    assert (drawn["method"], drawn["count"]) == ("seeds", 3)


def test_recorded_acceptance_of_a_trace_runs_once(folder: Path) -> None:
    (folder / "counts.jsonl").write_text('{"accepted": [2, 0, 3]}\n')
    recorded = DRAFTS.replace("{law: iid, alpha: 0.8}", "{law: replay, file: counts.jsonl}") % ""
    other = design(folder, f"deployment: {{pools: {{main: {{speculation: {recorded}}}}}}}")
    assert compared("slow.yaml", other, seeds=3, trace=trace(folder))["seeds"] == [0]


def test_there_is_no_speed_up_between_two_that_do_not_speculate_or_two_that_do(folder: Path) -> None:
    assert "speed_up" not in compared("slow.yaml", "fast.yaml", seeds=1)
    more = drafting(folder, "more", ", disable_by_batch_size: 4")
    assert "speed_up" not in compared(drafting(folder), more, seeds=1)


def test_gaps_by_event_of_a_run_without_speculation_are_those_between_tokens(folder: Path) -> None:
    document = compared("slow.yaml", drafting(folder), seeds=1)
    slow = document["metrics"]["slow"]
    assert slow["latency.itl_event_ms.p50"] == slow["latency.itl_ms.p50"]
    assert "speculation.acceptance_length" in document["metrics"]["other"]
    assert not {name for name in slow if name.startswith("speculation.")}
    plain = compared("slow.yaml", "fast.yaml", seeds=1)["metrics"]["slow"]
    assert not [name for name in plain if "event" in name]


@pytest.mark.parametrize(
    "rules", [("", ", verification: argmax"), (", verification: typical", ", verification: argmax")]
)
def test_laws_of_outputs_are_not_mixed_in_silence(folder: Path, rules: tuple[str, str]) -> None:
    names = [drafting(folder, name, rule) for name, rule in zip(("one", "two"), rules, strict=True)]
    expected = r"^speculation\.verification: output is approximate \(argmax, .*\) in two, .* --mixed-decoding$"
    with pytest.raises(InputError, match=expected):
        comparison_of(names, seeds=1)


def test_rules_that_keep_the_law_are_no_difference(folder: Path) -> None:
    assert len(load_designs(["slow.yaml", drafting(folder)])) == 2
    argmax = ", verification: argmax"
    assert len(load_designs([drafting(folder, "one", argmax), drafting(folder, "two", argmax)])) == 2


def test_mixed_laws_stand_where_they_were_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = comparison_of(("slow.yaml", drafting(folder, more=", verification: argmax")), seeds=1, allowed=MIXED)
    document = document_of(comparison)
    slow, other = (document["mixed_decoding"][name] for name in ("slow", "other"))
    assert (slow["law"], slow["output_tokens"]) == ("exact", other["output_tokens"])
    assert other["law"].startswith("approximate (argmax, total variation 0.")
    assert document["warnings"][0]["code"] == "mixed_decoding"
    assert f"other: output {other['law']}" in document["warnings"][0]["text"]
    print_comparison(document, compared_metrics(comparison))
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("output "))
    assert row.split()[1:3] == ["exact", "approximate"]


def test_mixed_budgets_stand_where_they_were_accepted(folder: Path) -> None:
    comparison = comparison_of(("slow.yaml", design(folder, "workload: {max_tokens: 9}")), seeds=2, allowed=MIXED)
    mixed = document_of(comparison)["mixed_decoding"]
    assert mixed["slow"]["max_tokens"] > mixed["other"]["max_tokens"] > 0
    assert mixed["slow"]["output_tokens"] > mixed["other"]["output_tokens"]


def test_nothing_is_called_mixed_that_is_not(folder: Path) -> None:
    assert "mixed_decoding" not in compared("slow.yaml", drafting(folder), seeds=1, allowed=MIXED)


# --- the command


def test_the_command_accepts_mixed_decoding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["slow.yaml", drafting(folder, more=", verification: argmax")]
    assert main(["compare", *names, "--seeds", "1", "--jobs", "1"]) == 2
    assert "--mixed-decoding" in capsys.readouterr().err
    assert main(["compare", *names, "--seeds", "1", "--jobs", "1", "--mixed-decoding", "--json"]) == 0
    assert "mixed_decoding" in json.loads(capsys.readouterr().out)


def test_the_command_prints_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["compare", "slow.yaml", "fast.yaml", "--seeds", "2", "--jobs", "1", "--set", "workload.requests=40"]) == 0
    )
    text = capsys.readouterr().out
    for expected in ("slow, fast; seeds 0 to 1; baseline: slow", "ITL p99, ms", "minus slow", "around p95", "stall"):
        assert expected in text
    assert "refused" not in text  # nothing was
    assert main(["compare", "slow.yaml", "fast.yaml", "--seeds", "1", "--jobs", "1"]) == 0
    assert "one run: means over requests have a 95% interval" in capsys.readouterr().out


def test_the_command_prints_and_writes_the_same_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["slow.yaml", "fast.yaml"]
    assert main(["compare", *names, "--seeds", "2", "--jobs", "1", "--json", "--out", "out"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((folder / "out" / "compare.json").read_text()) == printed
    assert printed["schema_version"] == SCHEMA_VERSION
    written = sorted(path.name for path in (folder / "out").iterdir())
    assert written == ["attribution.png", "compare.json", "fast", "latency.png", "slow"]
    results = simulator.load_results(folder / "out" / "fast")
    assert results.summary["latency"] == printed["designs"]["fast"]["latency"]
    check_folder(folder / "out", load_designs(names))  # the next comparison may take its place


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["slow.yaml"], "a comparison needs two scenarios or more"),
        (["slow.yaml", "fast.yaml", "--seeds", "0"], "--seeds: expected a whole number"),
        (["slow.yaml", "fast.yaml", "--out", "slow.yaml"], "slow.yaml: is a file; a comparison needs a folder"),
        (["slow.yaml", "fast.yaml", "--out", "."], "holds fast.yaml, which is not part of a comparison"),
        (["slow.yaml", "quickstart"], "workload.trace"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_runs_on_several_cores_give_the_same(folder: Path) -> None:
    names = ("slow.yaml", "fast.yaml")
    assert compared(*names, seeds=2, jobs=2) == compared(*names, seeds=2, jobs=1)
