"""Flags of the tables that calibrations use, against other tables of the same kernels and physical bounds."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="needs the `calibrate` extra")
pytest.importorskip("scipy", reason="needs the `calibrate` extra")
pytest.importorskip("pyarrow", reason="needs the `calibrate` extra")

from cost_models import CostModelError, load_gpu  # noqa: E402
from cost_models.calibration import cross_check as checks  # noqa: E402
from cost_models.calibration.attention import prefill_work_ns  # noqa: E402
from cost_models.calibration.cross_check import Comparison, cross_check  # noqa: E402
from cost_models.calibration.read_attention import mla_decodes, mla_prefills, taken_attention  # noqa: E402
from cost_models.calibration.siblings import MODULE, collections  # noqa: E402
from cost_models.kernels.calibrated import kernels_of  # noqa: E402
from simulator.cli import main  # noqa: E402

GPU = load_gpu("l40s")
TOKENS, SIDES = (16, 64, 256, 1024, 4096, 16_384), (1024, 4096, 8192)


def gemm_ms(m: int, n: int, k: int, slower: float) -> float:
    flops = 2 * m * n * k / GPU.peak("bf16")
    moved = 2 * (m * k + k * n + m * n) / GPU.hbm_bandwidth
    return 1e3 * slower * max(flops, moved)


def write_gemm(root: Path, place: str, slower: float) -> None:
    shapes = list(product(TOKENS, SIDES, SIDES))
    rows = [("bfloat16", m, n, k, gemm_ms(m, n, k, slower)) for m, n, k in shapes]
    write(root / place / "gemm_perf.parquet", pd.DataFrame(rows, columns=["gemm_dtype", "m", "n", "k", "latency"]))


def write_prompts(root: Path, place: str, share: float, projections_ms: float | None = None) -> None:
    """Write prompts with MLA at a `share` of the peak; whole modules if the time of their projections is given."""
    rows = []
    for heads, batch, tokens in product((8, 16, 32), (1, 2, 4), (2048, 8192, 32_768)):
        flops = 2 * heads * (192 + 128) * batch * tokens * (tokens + 1) / 2
        latency = 1e3 * flops / (share * GPU.peak("bf16")) + (projections_ms or 0.0)
        rows.append((heads, batch, tokens, 0, "bfloat16", "bfloat16", latency))
    names = ["num_heads", "batch_size", "isl", "step", "kv_cache_dtype", "gemm_type", "latency"]
    file = "context_mla_perf" if projections_ms is None else "mla_context_module_perf"
    write(root / place / f"{file}.parquet", pd.DataFrame(rows, columns=names))


def write(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a package with only the data that a test writes, of L40S only; the folder of that GPU."""
    monkeypatch.setattr(checks, "package_root", lambda: tmp_path)
    monkeypatch.setattr(checks, "PACKAGE_NAMES", {"l40s": "l40s"})
    return tmp_path / "l40s"


def found(group: str, place: str) -> Comparison:
    (comparison,) = [each for each in cross_check("l40s") if each.group == group and each.place == place]
    return comparison


def test_a_table_like_its_siblings_is_not_flagged(package: Path) -> None:
    write_gemm(package, "gemm/vllm/0.24.0", slower=1.3)
    write_gemm(package, "gemm/sglang/0.5.14", slower=1.4)
    sibling = found("bf16", "gemm/sglang/0.5.14")
    assert sibling.short is not None
    assert sibling.long is not None
    assert sibling.short.shapes + sibling.long.shapes == len(TOKENS) * len(SIDES) ** 2
    assert sibling.long.median == pytest.approx(1.3 / 1.4)
    assert not sibling.flagged
    bound = found("bf16", "physical bound")
    assert bound.long is not None
    assert bound.long.median == pytest.approx(1.3)
    assert not bound.flagged


@pytest.mark.parametrize("slower", [0.7, 2.2])
def test_a_table_unlike_its_sibling_is_flagged(package: Path, slower: float) -> None:
    write_gemm(package, "gemm/vllm/0.24.0", slower=1.3)
    write_gemm(package, "gemm/sglang/0.5.14", slower=slower)
    assert found("bf16", "gemm/sglang/0.5.14").flagged


def test_a_kernel_of_another_form_is_told_by_its_bound_and_by_a_whole_module(package: Path) -> None:
    """Prompts in the absorbed form do 3.4 times the FLOPs that their widths need."""
    place = taken_attention("l40s")["mla prefill bf16"]
    write_prompts(package, place, share=0.6 / 3.4)
    projections_ms = 2.0
    write_prompts(package, "mla/vllm/0.24.0", 0.6, projections_ms)
    bound = found("mla prefill bf16", "physical bound")
    assert bound.flagged
    module = found("mla prefill bf16", f"mla/vllm/0.24.0 {MODULE}")
    assert module.flagged
    assert module.short is None
    write_prompts(package, place, share=0.6)
    assert not found("mla prefill bf16", "physical bound").flagged


def test_of_a_module_the_projections_are_taken_away(package: Path) -> None:
    write_prompts(package, "mla/vllm/0.24.0", 0.5, projections_ms=0.0)
    kernels = kernels_of(GPU, "shipped")
    (module,) = collections(package, kernels)
    assert module.place == f"mla/vllm/0.24.0 {MODULE}"
    whole = 2 * prefill_work_ns(module.rows, GPU)
    tokens = module.rows["batch"].to_numpy(float) * module.rows["tokens"].to_numpy(float)
    hidden, heads = 7168, module.rows["heads"].to_numpy(float)
    weights = hidden * (1536 + 576) + heads * (1536 * 192 + 512 * 256 + 128 * hidden)
    taken = whole - module.rows["latency_ns"].to_numpy(float)
    assert (taken >= 2 * weights * tokens / GPU.peak("bf16") * 1e9).all()
    assert (module.rows["latency_ns"] >= 0.5 * whole).all()


def test_few_shapes_say_nothing(package: Path) -> None:
    write_gemm(package, "gemm/vllm/0.24.0", slower=1.3)
    other = pd.DataFrame([("bfloat16", 16, 1024, 1024, 9.0)], columns=["gemm_dtype", "m", "n", "k", "latency"])
    write(package / "gemm/sglang/0.5.14/gemm_perf.parquet", other)
    assert not [each for each in cross_check("l40s") if "sglang" in each.place]


def test_it_is_printed(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gemm(package, "gemm/vllm/0.24.0", slower=1.3)
    write_gemm(package, "gemm/sglang/0.5.14", slower=3.0)
    assert main(["calibrate", "--gpu", "L40S", "--cross-check"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "gemm/sglang/0.5.14" in line]
    assert "0.43 (0.43-0.43)" in line
    assert line.rstrip().endswith("beyond")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("cost_models.calibration.calibrate.util.find_spec", lambda name: None)
    assert main(["calibrate", "--gpu", "l40s", "--cross-check"]) == 2
    assert "pip install 'servesim[calibrate]'" in capsys.readouterr().err
    assert main(["calibrate", "--gpu", "l40s", "--cross-check", "--source", "mine.csv"]) == 2
    assert "--cross-check writes no file" in capsys.readouterr().err


def test_an_unknown_gpu() -> None:
    with pytest.raises(CostModelError, match="no measured kernels of a100-sxm-40gb; there are"):
        cross_check("a100-sxm-40gb")


# --- what is measured


@pytest.fixture(scope="module")
def measured() -> Path:
    """Return the folder `systems/data` of the package."""
    package = pytest.importorskip("aiconfigurator_core", reason="needs the `calibrate` extra")
    return Path(package.__file__).parent / "systems" / "data"


@pytest.mark.parametrize(("folder", "name"), [("h100_sxm", "h100-sxm"), ("h200_sxm", "h200-sxm"), ("l40s", "l40s")])
def test_prompts_with_mla_are_of_the_kernel_that_engines_use(measured: Path, folder: str, name: str) -> None:
    """More than a third of the peak at the widths 192 and 128; the absorbed form reaches a fifth at most."""
    gpu = load_gpu(name)
    for place, least, most in ((taken_attention(folder)["mla prefill bf16"], 0.35, 0.8), ("mla/sglang/0.5.14", 0, 0.2)):
        rows = mla_prefills(measured / folder / place)
        long = rows[(rows["kv_dtype"] == "bf16") & (rows["tokens"] == 16_384) & (rows["heads"] >= 8)]
        share = np.median(prefill_work_ns(long, gpu) / long["latency_ns"].to_numpy(float))
        assert least < share < most, place


def test_decodes_with_mla_from_an_fp8_cache_are_no_slower_than_from_bf16(measured: Path) -> None:
    for folder in ("h100_sxm", "h200_sxm"):
        taken = taken_attention(folder)
        both = []
        for kv_dtype in ("bf16", "fp8"):
            rows = mla_decodes(measured / folder / taken[f"mla decode {kv_dtype}"])
            rows = rows[(rows["kv_dtype"] == kv_dtype) & (rows["heads"] == 16) & (rows["batch"] == 64)]
            both.append(rows.groupby("context")["latency_ns"].median())
        ratio = (both[1] / both[0]).loc[4096:]
        assert (ratio < 1).all()
