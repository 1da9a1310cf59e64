"""Fitting experts to rows made by a known law, and reading the measured ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cost_models.laws.moe import ExpertsLaw, Shape
from cost_models.laws.routing import EVEN
from cost_models.library import load_gpu
from cost_models.roofline.operands import Experts

pd = pytest.importorskip("pandas", reason="fitting needs the calibrate extra")
pytest.importorskip("scipy", reason="fitting needs the calibrate extra")

from cost_models.calibration.moe import fit_experts  # noqa: E402
from cost_models.calibration.read_moe import read_experts  # noqa: E402
from cost_models.errors import CostModelError  # noqa: E402

H100 = load_gpu("h100-sxm")
SHAPES = [(4096, 14336, 8, 2), (2048, 768, 128, 8), (5120, 8192, 16, 1)]
TOKENS = np.array([1, 2, 4, 8, 16, 64, 256, 1024, 4096], float)


def rows_of(law: ExpertsLaw, noise: float = 0.0) -> pd.DataFrame:
    """Return rows measured by `law`, with relative errors of the size `noise`."""
    generator = np.random.Generator(np.random.PCG64(1))
    parts = []
    for hidden, width, experts, top_k in SHAPES:
        for tensor in (1, 2, 4):
            times = law.ns(Experts(hidden, width // tensor, experts, top_k, 3, "bf16"), TOKENS, EVEN)
            times = times * (1 + noise * generator.standard_normal(len(times)))
            part = pd.DataFrame({"tokens": TOKENS.astype(int), "latency_ns": times})
            parts.append(
                part.assign(
                    hidden=hidden,
                    width=width // tensor,
                    model_width=width,
                    experts=experts,
                    top_k=top_k,
                    expert_parallel=1,
                    matrices=3,
                    distribution="balanced",
                )
            )
    return pd.concat(parts, ignore_index=True)


def truth(above: float) -> ExpertsLaw:
    """Return a law with `above` times the base for every shape."""
    shapes = tuple(Shape(hidden, width, experts, top_k, 1) for hidden, width, experts, top_k in SHAPES)
    curves = np.full((3, len(TOKENS)), above)
    return ExpertsLaw(H100, "bf16", 20_000.0, TOKENS, shapes, curves)


def test_a_law_is_found_again() -> None:
    law, rows = truth(1.4), rows_of(truth(1.4))
    fitted = fit_experts(rows, H100, "bf16", "made").law
    unseen = Experts(3072, 2048, 32, 4, 3, "bf16")
    assert fitted.ns(unseen, TOKENS, EVEN) == pytest.approx(law.ns(unseen, TOKENS, EVEN), rel=0.15)
    seen = Experts(2048, 384, 128, 8, 3, "bf16")
    assert fitted.ns(seen, TOKENS, EVEN) == pytest.approx(law.ns(seen, TOKENS, EVEN), rel=0.01)


def test_errors_are_those_of_rows_that_the_fit_has_not_seen() -> None:
    clean = fit_experts(rows_of(truth(1.4)), H100, "bf16", "made").errors
    noisy = fit_experts(rows_of(truth(1.4), noise=0.2), H100, "bf16", "made").errors
    assert clean["all"].median_pct < 3
    assert 10 < noisy["all"].median_pct < 30
    assert clean["model left out: 2048x768x128x8"].rows == 3 * len(TOKENS)
    assert clean["whole models left out"].rows == 9 * len(TOKENS)


def test_impossible_rows_are_dropped_and_counted() -> None:
    rows = rows_of(truth(1.4))
    rows.loc[:1, "latency_ns"] = [1.0, np.nan]
    fitted = fit_experts(rows, H100, "bf16", "made")
    assert fitted.dropped == {"not a time": 1, "faster than physics allows": 1}
    assert fitted.rows == len(rows) - 2


def test_a_shape_without_a_tuned_kernel_is_dropped_and_counted() -> None:
    rows = rows_of(truth(1.4))
    half = (rows["hidden"] == 2048) & (rows["width"] == 384)
    rows.loc[half, "latency_ns"] *= 6
    fitted = fit_experts(rows, H100, "bf16", "made")
    assert fitted.dropped == {"kernel not tuned": len(TOKENS)}
    assert fitted.rows == len(rows) - len(TOKENS)


def test_power_laws_are_predicted_and_never_fitted() -> None:
    rows = rows_of(truth(1.4))
    skewed = rows.assign(distribution="power_law_1.2", latency_ns=rows["latency_ns"] * 10)
    alone, both = (fit_experts(data, H100, "bf16", "made") for data in (rows, pd.concat([rows, skewed])))
    assert both.law.to_json() == alone.law.to_json()
    assert both.errors["power_law_1.2, not fitted"].median_pct > 50


@pytest.mark.parametrize("gpu", ["h100_sxm", "a100_sxm"])
def test_measured_rows(gpu: str) -> None:
    package = pytest.importorskip("aiconfigurator_core", reason="the measured timings are in the calibrate extra")
    dtype, rows, source = read_experts(Path(package.__file__).parent / "systems" / "data", gpu)["bf16"]
    assert dtype == "bf16"
    assert "bfloat16" in source
    balanced = rows[rows["distribution"] == "balanced"]
    mixtral = balanced[(balanced["experts"] == 8) & (balanced["width"] == 7168) & (balanced["expert_parallel"] == 1)]
    fitted = fit_experts(mixtral, load_gpu("h100-sxm" if gpu == "h100_sxm" else "a100-sxm-80gb"), dtype, source)
    times = fitted.law.ns(Experts(4096, 7168, 8, 2, 3, "bf16"), mixtral["tokens"].to_numpy(float), EVEN)
    error = np.abs(times / mixtral["latency_ns"].to_numpy() - 1)
    assert np.median(error) < 0.02


def test_a_gpu_without_measurements(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="no measured experts for b200; known: h100_sxm"):
        read_experts(tmp_path, "b200")
