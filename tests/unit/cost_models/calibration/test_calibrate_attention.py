"""Calibrating attention: laws are found again from the calls they predict, and bad rows do no harm."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="needs the `calibrate` extra")
pytest.importorskip("scipy", reason="needs the `calibrate` extra")

from cost_models import CostModelError, load_gpu  # noqa: E402
from cost_models.calibration.attention import calibrate_attention, decode_ns, prefill_ns  # noqa: E402
from cost_models.calibration.decode_attention import cold, fit_decode  # noqa: E402
from cost_models.calibration.heads import seen_keys  # noqa: E402
from cost_models.calibration.measurements import read_measurements  # noqa: E402
from cost_models.calibration.prefill_attention import fit_prefill  # noqa: E402
from cost_models.calibration.read_attention import (  # noqa: E402
    AttentionRows,
    own_chunks,
    own_rows,
    read_attention,
)
from cost_models.files.fields import Fields  # noqa: E402
from cost_models.laws.attention import AttentionLaws  # noqa: E402
from cost_models.laws.decode_attention import DecodeKind  # noqa: E402
from cost_models.laws.prefill_attention import PrefillKind  # noqa: E402

GPU = load_gpu("h100-sxm")
SHARED = Path(__file__).parents[5] / "shared" / "kernels"

DECODE = DecodeKind(
    kv_dtype="bf16",
    head_dim=128,
    shared=True,
    launch_pairs=np.array([128.0, 256, 512, 1024]),
    launch_ns=np.array([16_000.0, 20_000, 25_000, 40_000]),
    saved_ns=np.zeros(4),
    query=2.0,
    rate_pairs=np.array([1.0]),
    rate=np.array([1.05]),
)
PREFILL = PrefillKind(
    kv_dtype="bf16",
    head_dim=128,
    launch_ns=12_000.0,
    new=1.4,
    earlier=1.2,
    query=1.8,
    kv_heads=np.array([1.0, 2, 8]),
    token_ns=np.array([1.0, 3, 6]),
    serial_ns=7.0,
    context_serial_ns=26.0,
)
TRUTH = AttentionLaws(GPU, (DECODE,), (PREFILL,))


def calls(**columns: list[int]) -> pd.DataFrame:
    """Return a row for each combination, in BF16 with a head_dim of 128."""
    rows = pd.DataFrame(list(product(*columns.values())), columns=list(columns))
    rows = rows[rows["heads"] >= rows["kv_heads"]] if "kv_heads" in rows else rows
    return rows.reset_index(drop=True).assign(head_dim=128, v_head_dim=128, kv_dtype="bf16", latent=0)


def decodes() -> pd.DataFrame:
    powers = [2**k for k in range(1, 15)]
    rows = calls(batch=[1, 4, 16, 64, 256], heads=[8, 32], kv_heads=[1, 2, 8], window=[0], context=powers)
    return rows.assign(latency_ns=decode_ns(TRUTH, rows))


def prompts() -> pd.DataFrame:
    tokens = [16, 128, 256, 512, 1024, 2048, 4096, 8192]
    rows = calls(batch=[1, 4, 16], heads=[1, 8, 32], kv_heads=[1, 2, 8], window=[0], context=[0], tokens=tokens)
    return rows.assign(latency_ns=prefill_ns(TRUTH, rows))


def chunks(launch_ns: float = 12_000.0) -> pd.DataFrame:
    context = [0, 64, 512, 2048, 4096, 8192]
    rows = calls(batch=[1], heads=[8, 32], kv_heads=[2], window=[0], context=context, tokens=[32, 256, 2048])
    return rows.assign(latency_ns=prefill_ns(TRUTH, rows) - PREFILL.launch_ns + launch_ns)


def test_laws_are_found_again_from_what_they_predict() -> None:
    found = calibrate_attention(AttentionRows(decodes(), prompts(), True, "here"), chunks(), GPU)
    assert {"decode", "decode bf16", "prefill", "prefill of unseen heads", "chunk"} <= set(found.errors)
    assert all(error.p90_pct < 1 for name, error in found.errors.items() if name != "prefill of unseen heads")
    assert found.source == "here"
    assert found.rows == len(decodes()) + len(prompts()) + len(chunks()) - (chunks()["context"] == 0).sum()
    rows = decodes()
    beyond = rows[cold(rows, GPU)]
    again = AttentionLaws.from_json(Fields("law", found.to_json()["law"]), GPU)
    assert decode_ns(again, beyond) == pytest.approx(beyond["latency_ns"].to_numpy(), rel=5e-3)


def test_a_launch_of_another_measurement_is_told_apart() -> None:
    fitted = fit_prefill(prompts(), chunks(launch_ns=3_000.0), GPU)
    assert fitted.excess_launch_ns == pytest.approx(9_000, rel=0.03)
    (kind,) = fitted.kinds
    assert (kind.new, kind.earlier) == pytest.approx((1.4, 1.2), rel=0.02)
    assert (kind.serial_ns, kind.context_serial_ns) == pytest.approx((7, 26), rel=0.02)


def test_kinds_without_chunks_take_over_the_ratios_of_those_that_have_them() -> None:
    wide = prompts().assign(head_dim=256, v_head_dim=256)
    narrow, other = fit_prefill(pd.concat([prompts(), wide]), chunks(), GPU).kinds
    assert (narrow.head_dim, other.head_dim) == (128, 256)
    assert other.context_serial_ns / other.serial_ns == pytest.approx(narrow.context_serial_ns / narrow.serial_ns)
    assert other.earlier == pytest.approx(max(1.0, other.new * narrow.earlier / narrow.new))
    (alone,) = fit_prefill(prompts(), chunks().iloc[:0], GPU).kinds
    assert (alone.earlier, alone.context_serial_ns) == (alone.new, alone.serial_ns)


def test_calls_that_hit_l2_do_not_count_but_for_the_launch_of_short_ones() -> None:
    rows = decodes()
    hot = ~cold(rows, GPU)
    faster = rows.assign(latency_ns=rows["latency_ns"].where(~hot, rows["latency_ns"] - 5_000))
    (kind,) = fit_decode(faster, GPU, splits_keys=True)
    (usual,) = fit_decode(rows, GPU, splits_keys=True)
    assert kind.launch_ns.tolist() == usual.launch_ns.tolist()
    assert kind.saved_ns - usual.saved_ns == pytest.approx(5_000, rel=0.02)
    assert np.all(np.diff(kind.saved_ns) <= 0)


def test_kernels_that_do_not_split_keys_get_a_rate_by_pairs() -> None:
    rows = decodes().query("heads == kv_heads")
    pairs = (rows["batch"] * rows["kv_heads"]).to_numpy(float)
    serial = rows.assign(latency_ns=10_000 + seen_keys(rows) * 23 * np.maximum(1, pairs / 128))
    (kind,) = fit_decode(serial, GPU, splits_keys=False)
    assert not kind.shared
    law = AttentionLaws(GPU, (kind,), (PREFILL,))
    beyond = serial[cold(serial, GPU)]
    assert decode_ns(law, beyond) == pytest.approx(beyond["latency_ns"].to_numpy(), rel=0.03)
    assert np.all(np.diff(kind.rate_pairs * kind.rate) >= 0)


def test_outliers_hardly_move_a_law() -> None:
    rows = decodes()
    latency = rows["latency_ns"].to_numpy().copy()
    latency[::20] *= 1.5
    (kind,) = fit_decode(rows.assign(latency_ns=latency), GPU, splits_keys=True)
    assert kind.rate[0] == pytest.approx(1.05, rel=0.02)


def test_rows_that_beat_physics_are_dropped_and_counted() -> None:
    rows = decodes()
    broken = rows.assign(latency_ns=rows["latency_ns"].where(rows.index != rows["context"].idxmax(), 10.0))
    found = calibrate_attention(AttentionRows(broken, prompts(), True, ""), None, GPU)
    assert found.dropped == {"faster than physics allows": 1}
    assert "chunk" not in found.errors


def test_chunks_come_from_published_files_and_from_our_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "chunks.csv"
    head = "gpu,model,heads,kv_heads,head_dim,chunk_tokens,prior_context_tokens,latency_ms"
    path.write_text(f"{head}\na800,x,8,2,128,64,512,0.02\na800,x,8,2,128,64,512,0.04\na800,x,8,2,128,64,0,0.01\n")
    frames = read_measurements(path, ("a800",))
    chunks = own_chunks(frames)
    assert chunks is not None
    (row,) = chunks.to_dict("records")
    assert (row["tokens"], row["context"], row["batch"], row["window"]) == (64, 512, 1, 0)
    assert row["latency_ns"] == pytest.approx(30_000)
    # These are other kernels, launched alone: whole prompts of such a file do not replace those of the package.
    before = AttentionRows(decodes(), prompts(), True, "package")
    assert own_rows(frames, before) is before
    own = {"prefill_attention": prompts().assign(source="ours")}
    found = own_rows(own, before)
    assert found is not None
    assert found.source == "package; ours"
    assert own_chunks(own) is None
    with pytest.raises(CostModelError, match="attention needs rows of decode_attention and of prefill_attention"):
        own_rows(own, None)


def test_unknown_gpus_are_named() -> None:
    with pytest.raises(CostModelError, match="no attention data of b200; there are h100_sxm"):
        read_attention(Path(), "b200")


def test_measured_a100_calls_have_uniform_columns() -> None:
    package = pytest.importorskip("aiconfigurator_core", reason="needs the `calibrate` extra")
    rows = read_attention(Path(package.__file__).parent / "systems" / "data", "a100_sxm")
    assert not rows.splits_keys
    assert set(rows.decode.columns) | {"tokens"} == set(rows.prefill.columns)
    assert len(rows.decode) > 5000
    assert len(rows.prefill) > 5000
    shape = [column for column in rows.decode.columns if column != "latency_ns"]
    assert not rows.decode.duplicated(shape).any()
    assert not rows.decode.isna().any(axis=None)


@pytest.mark.parametrize("gpu", ["h100", "a800"])
def test_published_chunks_are_read(shared: Path, gpu: str) -> None:
    frames = read_measurements(shared / "kernels" / f"chunked_prefill_{gpu}.csv", (gpu, f"{gpu}_sxm"))
    chunks = own_chunks(frames)
    assert chunks is not None
    assert len(chunks) > 400
    assert (chunks["latency_ns"] > 1000).all()
