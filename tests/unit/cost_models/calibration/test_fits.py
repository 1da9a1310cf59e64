"""Fits find the law of generated measurements, drop impossible ones, and refuse too few rows."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from cost_models import load_gpu
from cost_models.calibration.communication import fit_all_reduce, fit_p2p
from cost_models.calibration.elementwise import fit_elementwise
from cost_models.calibration.fitted import TooFewRowsError
from cost_models.calibration.gemm import fit_gemm
from cost_models.calibration.knots import thinned
from cost_models.laws.gemm import GemmLaw, Waves
from cost_models.laws.table import Table

GPU = load_gpu("h100-sxm")
SIDES = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def gemm_rows(waves: Waves | None) -> pd.DataFrame:
    """Return products with 1.2 times the base of a law, with a percent of noise."""
    table = Table(("tokens", "rows", "columns"), (np.ones(1),) * 3, np.full((1, 1, 1), 1.2))
    law = GemmLaw(GPU, "bf16", waves, table)
    rows = pd.DataFrame(itertools.product(TOKENS, SIDES, SIDES), columns=["m", "n", "k"])
    m, n, k = (rows[name].to_numpy(float) for name in "mnk")
    noise = np.random.default_rng(7).uniform(0.99, 1.01, len(rows))
    return rows.assign(latency_ns=1.2 * law.base_ns(k, n, m, 16.0) * noise)


def test_gemm_finds_the_law_of_its_rows() -> None:
    fitted = fit_gemm(gemm_rows(None), GPU, "bf16", "made up")
    assert fitted.law.waves is None
    assert fitted.errors["n and k 512 to 32768"].median_pct < 1
    assert fitted.errors["n and k 512 to 32768, (n, k) never seen"].median_pct < 1.5
    assert fitted.law.table.values == pytest.approx(1.2, rel=0.02)
    assert fitted.rows == len(TOKENS) * len(SIDES) ** 2
    assert fitted.dropped == {}


def test_gemm_finds_the_tiles_of_its_rows() -> None:
    assert fit_gemm(gemm_rows(Waves(128, 256, 132, 0.5)), GPU, "bf16", "").law.waves == Waves(128, 256, 132, 0.5)


def test_gemm_counts_the_rows_that_are_impossible() -> None:
    rows = gemm_rows(None)
    rows.loc[[3, 5], "latency_ns"] = [float("nan"), 0.0]
    rows.loc[[-1 + len(rows)], "latency_ns"] = 1.0
    fitted = fit_gemm(rows, GPU, "bf16", "")
    assert fitted.dropped == {"not a time": 2, "faster than physics allows": 1}
    assert fitted.rows == len(rows) - 3


def test_a_gemm_fit_does_not_depend_on_the_order_of_rows() -> None:
    rows = gemm_rows(None)
    shuffled = rows.sample(frac=1, random_state=3)
    assert fit_gemm(rows, GPU, "bf16", "").to_json() == fit_gemm(shuffled, GPU, "bf16", "").to_json()


def test_few_gemms_give_a_small_table_and_fewer_none() -> None:
    rows = gemm_rows(None)
    few = rows[rows["m"].isin([1, 64, 1024]) & rows["n"].isin([512, 4096, 16384]) & rows["k"].isin([1024, 4096, 8192])]
    assert fit_gemm(few, GPU, "bf16", "").law.table.values.shape == (3, 3, 3)
    with pytest.raises(TooFewRowsError, match="gemm bf16: 5 shapes measured; a fit needs at least 24"):
        fit_gemm(rows.head(5), GPU, "bf16", "")


def test_all_reduce_finds_latency_and_bandwidth_of_both_kernels() -> None:
    sizes = 2.0 ** np.arange(8, 30)
    time = np.where(sizes < 8 * 2**20, 5000 + sizes / 250, 30_000 + sizes / 200)
    rows = pd.concat([pd.DataFrame({"gpus": gpus, "bytes": sizes, "latency_ns": time}) for gpus in (2, 4)])
    fitted = fit_all_reduce(rows, GPU, "")
    assert fitted.errors["all"].median_pct < 0.1
    below, at = fitted.law.ns(2, np.array([8.0 * 2**20 - 1, 8.0 * 2**20]))
    assert below == pytest.approx(5000 + 8 * 2**20 / 250, rel=1e-3)
    assert at == pytest.approx(30_000 + 8 * 2**20 / 200, rel=1e-3)
    assert fitted.law.ns(4, np.array([2.0**31]))[0] == pytest.approx(30_000 + 2.0**31 / 200, rel=1e-3)
    with pytest.raises(TooFewRowsError, match="all_reduce on 2 GPUs: 1 sizes"):
        fit_all_reduce(rows.head(1), GPU, "")


def test_p2p_finds_latency_and_bandwidth() -> None:
    sizes = np.arange(1, 200) * 100_000.0
    fitted = fit_p2p(pd.DataFrame({"bytes": sizes, "latency_ns": 9000 + sizes / 300}), GPU, "")
    assert fitted.errors["all"].p90_pct < 0.1
    assert fitted.law.ns(np.array([12_345_678.0]))[0] == pytest.approx(9000 + 12_345_678 / 300, rel=1e-3)


def test_elementwise_finds_floor_and_bandwidth() -> None:
    tokens = 2.0 ** np.arange(0, 14)
    moved = tokens * 40_000
    time = np.maximum(4000.0, moved / (0.5 * GPU.hbm_bandwidth / 1e9))
    rows = pd.DataFrame({"name": "norm", "tokens": tokens, "bytes": moved, "latency_ns": time})
    law = fit_elementwise(rows, GPU, "").law
    assert (law.launch_ns, law.bandwidth) == (4000.0, pytest.approx(0.5))
    with pytest.raises(TooFewRowsError, match="elementwise: a fit needs calls"):
        fit_elementwise(rows.head(3), GPU, "")


def test_thinned_values_keep_both_ends() -> None:
    assert thinned(np.array([5.0, 1.0, 1.1, 2.0, 2.1, 4.9]), 1.5).tolist() == [1.0, 2.0, 4.9, 5.0]
