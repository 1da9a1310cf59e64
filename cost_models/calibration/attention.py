"""Calibration of the attention of a GPU: impossible rows dropped, errors on held-out shapes, laws fitted to all
rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cost_models.calibration.decode_attention import cold, fit_decode, traffic_ns
from cost_models.calibration.fitted import Fitted, possible
from cost_models.calibration.heads import heads_of, seen_keys
from cost_models.calibration.prefill_attention import fit_prefill
from cost_models.calibration.read_attention import AttentionRows
from cost_models.calibration.split import Errors, errors, held_out
from cost_models.laws.attention import AttentionLaws
from cost_models.roofline.operands import Floats, causal_pairs
from cost_models.specs.gpu import GpuSpec

_SECOND = 1e9
_SHAPE = ["batch", "heads", "kv_heads", "head_dim", "kv_dtype", "latent", "window", "context"]
#: Errors are computed for prompts of at least this length: shorter calls mainly consist of a launch.
_LONG = 256


def calibrate_attention(rows: AttentionRows, chunks: pd.DataFrame | None, gpu: GpuSpec) -> Fitted:
    """Fit the attention laws of a GPU; `law` of the result is an `AttentionLaws`.

    Args:
        rows: measured calls of `read_attention`.
        chunks: calls on earlier context (`own_chunks`), of this GPU or of one with the same processors; with None,
            pairs with earlier context are as fast as those within a prompt.
        gpu: its peaks.

    Errors are those of decodes that miss L2, and of prompts of at least 256 tokens; windows are predicted only. The
    groups "... of unseen heads" are from a fit without whole configurations (heads and KV heads), which is harder to
    predict. "chunk" has the launch of its own measurement, which timed other kernels alone; "chunk, launch of whole
    prompts" has the launch that a simulation uses.
    """
    decode, dropped = possible(rows.decode, _decode_bound_ns(rows.decode, gpu))
    prefill, too_fast = possible(rows.prefill, prefill_work_ns(rows.prefill, gpu))
    chunks = rows.prefill.iloc[:0] if chunks is None else chunks[chunks["context"] > 0]
    dropped = {reason: dropped.get(reason, 0) + too_fast.get(reason, 0) for reason in {**dropped, **too_fast}}
    frames = {"decode": decode, "prefill": prefill, "chunk": chunks}
    shapes = {name: _held_out(frame, [*_SHAPE, *({"tokens"} & set(frame))]) for name, frame in frames.items()}
    found = _errors_of(frames, shapes, rows.splits_keys, gpu)
    unseen = {name: _held_out(frame, ["heads", "kv_heads"]) for name, frame in frames.items()}
    unseen["chunk"] = np.zeros(len(chunks), bool)
    for name, error in _errors_of(frames, unseen, rows.splits_keys, gpu).items():
        if "mla" not in name:
            found[f"{name} of unseen heads"] = error
    law, _ = _fit(frames, rows.splits_keys, gpu)
    return Fitted(law, found, sum(len(frame) for frame in frames.values()), dropped, rows.source)


def decode_ns(law: AttentionLaws, rows: pd.DataFrame) -> Floats:
    """Return the law's time of each decode call, (n,)."""
    time, decodes = np.zeros(len(rows)), rows["batch"].to_numpy(float)
    keys = decodes * seen_keys(rows)
    for heads, window, mine in heads_of(rows):
        cost = law.decode_attention(heads, decodes[mine])
        time[mine] = cost.launch + cost.key * keys[mine]
        if not window:
            time[mine] -= cost.saved * np.maximum(0.0, 1 - keys[mine] / cost.cold_keys)
    return time


def prefill_ns(law: AttentionLaws, rows: pd.DataFrame) -> Floats:
    """Return the law's time of each prefill call, (n,); its `batch` chunks are equal."""
    time, chunks = np.zeros(len(rows)), rows["batch"].to_numpy(float)
    tokens, context = rows["tokens"].to_numpy(float), rows["context"].to_numpy(float)
    for heads, window, mine in heads_of(rows):
        cost = law.prefill_attention(heads)
        work = chunks[mine] * cost.work_ns(tokens[mine], context[mine], window)
        seen = np.minimum(context[mine], window - 1) if window else context[mine]
        path = tokens[mine] * cost.serial_ns + seen * cost.context_serial_ns
        time[mine] = cost.launch_ns + np.maximum(work, path)
    return time


def _fit(frames: Mapping[str, pd.DataFrame], splits_keys: bool, gpu: GpuSpec) -> tuple[AttentionLaws, float]:
    """Fit the laws; return them, and the excess of the launch of whole prompts over that of the chunks' measurement."""
    prefill = fit_prefill(frames["prefill"], frames["chunk"], gpu)
    law = AttentionLaws(gpu, fit_decode(frames["decode"], gpu, splits_keys), prefill.kinds)
    return law, prefill.excess_launch_ns


def _errors_of(
    frames: Mapping[str, pd.DataFrame], held: Mapping[str, NDArray[np.bool_]], splits_keys: bool, gpu: GpuSpec
) -> dict[str, Errors]:
    """Return errors on the held-out rows of laws fitted to the others, by operator and cache format."""
    law, excess_ns = _fit({name: frame[~held[name]] for name, frame in frames.items()}, splits_keys, gpu)
    unseen = {name: frame[held[name]] for name, frame in frames.items()}
    decode = unseen["decode"][cold(unseen["decode"], gpu)]
    prefill = unseen["prefill"][unseen["prefill"]["tokens"] >= _LONG]
    found = _by_kind("decode", decode, decode_ns(law, decode)) | _by_kind("prefill", prefill, prefill_ns(law, prefill))
    if len(unseen["chunk"]):
        time, measured = prefill_ns(law, unseen["chunk"]), unseen["chunk"]["latency_ns"].to_numpy(float)
        found["chunk"] = errors(time - excess_ns, measured)
        found["chunk, launch of whole prompts"] = errors(time, measured)
    return found


def _by_kind(name: str, rows: pd.DataFrame, predicted: Floats) -> dict[str, Errors]:
    """Return errors of all calls without a window and without MLA, then by format; of windows, and of MLA."""
    measured = rows["latency_ns"].to_numpy(float)
    plain, latent = (rows["latent"] == 0).to_numpy(), (rows["latent"] > 0).to_numpy()
    whole = plain & (rows["window"] == 0).to_numpy()
    groups = {name: whole, f"{name} windows": plain & ~whole}
    for kv_dtype in ("bf16", "fp8"):
        same = (rows["kv_dtype"] == kv_dtype).to_numpy()
        groups |= {f"{name} {kv_dtype}": whole & same, f"mla {name} {kv_dtype}": latent & same}
    return {group: errors(predicted[mine], measured[mine]) for group, mine in groups.items() if mine.any()}


def _held_out(rows: pd.DataFrame, columns: list[str]) -> NDArray[np.bool_]:
    return held_out(rows[columns]) if len(rows) else np.zeros(0, bool)


def decode_work_ns(rows: pd.DataFrame, gpu: GpuSpec) -> Floats:
    """Return the longer of each decode's FLOPs and of its keys' bytes, at the peaks, in ns."""
    return np.maximum(_decode_flops_ns(rows, gpu), traffic_ns(rows, gpu))


def _decode_bound_ns(rows: pd.DataFrame, gpu: GpuSpec) -> Floats:
    """Return the bound of each decode: `decode_work_ns`, or the FLOPs alone for calls whose keys fit into L2."""
    return np.maximum(_decode_flops_ns(rows, gpu), np.where(cold(rows, gpu), traffic_ns(rows, gpu), 0.0))


def _decode_flops_ns(rows: pd.DataFrame, gpu: GpuSpec) -> Floats:
    arithmetic = np.zeros(len(rows))
    for heads, _, mine in heads_of(rows):
        arithmetic[mine] = _SECOND * heads.key_flops / gpu.peak(heads.kv_dtype)
    time: Floats = arithmetic * rows["batch"].to_numpy(float) * seen_keys(rows)
    return time


def prefill_work_ns(rows: pd.DataFrame, gpu: GpuSpec) -> Floats:
    """Return the time of the FLOPs of each prompt, or chunk, at the peak."""
    time, chunks = np.zeros(len(rows)), rows["batch"].to_numpy(float)
    tokens, context = rows["tokens"].to_numpy(float), rows["context"].to_numpy(float)
    for heads, window, mine in heads_of(rows):
        pairs = chunks[mine] * causal_pairs(tokens[mine], context[mine], window)
        time[mine] = pairs * (_SECOND * heads.pair_flops / gpu.peak(heads.kv_dtype))
    return time
