"""Reader of measured attention kernels as uniform columns, from aiconfigurator's tables and from own CSV files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from cost_models.calibration.fitted import TooFewRowsError
from cost_models.calibration.measurements import CHUNKS
from cost_models.errors import CostModelError


class _Source(NamedTuple):
    """Folders (back end and version) of attention, and of MLA by the format of its cache; see `AttentionRows`."""

    attention: str
    mla_prefill: Mapping[str, str]
    mla_decode: Mapping[str, str]
    splits_keys: bool


_SGLANG, _TRTLLM, _TRTLLM_1_0 = "mla/sglang/0.5.14", "mla/trtllm/1.3.0rc20", "mla/trtllm/1.0.0"
_HOPPER = _Source(
    "attention/vllm/0.24.0",
    mla_prefill={"bf16": _TRTLLM, "fp8": _TRTLLM},
    mla_decode={"bf16": _SGLANG, "fp8": _TRTLLM},
    splits_keys=True,
)
#: By the folder of the GPU. Back ends differ by 15-21%, so each GPU has one; TensorRT-LLM's A100 decode beats the
#: memory bandwidth and is not used. vLLM 0.24 has FlashAttention 3, on A100 vLLM 0.14 FlashAttention 2.
#:
#: SGLang's prompts with MLA are of the absorbed form, on latents 576 and 512 wide, which engines use for decodes and
#: for short chunks alone; its decodes from an FP8 cache turn the cache into BF16 first, at up to ten times the time.
#: TensorRT-LLM 1.0's decodes with MLA give the keys of a sequence to one thread block, where vLLM and SGLang split
#: them: up to 40 times the time. On A100 there are no others, so that none are taken, and the law of heads that share
#: keys serves. `cross_check` prints the comparison.
SOURCES = {
    "h100_sxm": _HOPPER,
    "h200_sxm": _HOPPER,
    "l40s": _Source(
        "attention/vllm/0.24.0",
        mla_prefill={"bf16": _TRTLLM_1_0, "fp8": _TRTLLM_1_0},
        mla_decode={"bf16": _SGLANG},
        splits_keys=False,
    ),
    "a100_sxm": _Source(
        "attention/vllm/0.14.0",
        mla_prefill={"bf16": _TRTLLM_1_0, "fp8": _TRTLLM_1_0},
        mla_decode={},
        splits_keys=False,
    ),
}
#: Numbers of a token's cache entry, and of the part of it that is the value, for every model with MLA so far.
LATENT, KV_LORA_RANK, MLA_HEAD_DIM, MLA_V_HEAD_DIM = 576, 512, 192, 128

_SHAPE = ["batch", "heads", "kv_heads", "head_dim", "v_head_dim", "kv_dtype", "latent", "window", "context"]
_DECODE = [*_SHAPE, "latency_ns"]
_PREFILL = [*_SHAPE, "tokens", "latency_ns"]


class AttentionRows(NamedTuple):
    """Measured calls, one a row, in ns; repeated shapes are merged into their median.

    Columns: batch, heads, kv_heads, head_dim, v_head_dim, kv_dtype ("bf16" or "fp8"), latent (0 without MLA), window (0
    is none), context, latency_ns; for prefill also tokens. A decode's `context` counts the keys with the new one, a
    chunk's the tokens before it. Heads are those of one GPU. `splits_keys` is True if the decode kernel divides the
    keys of a sequence among thread blocks for any heads, as FlashAttention 3 does; FlashAttention 2 does so only for
    heads that share KV heads.
    """

    decode: pd.DataFrame
    prefill: pd.DataFrame
    splits_keys: bool
    source: str


def read_attention(root: Path, folder: str) -> AttentionRows:
    """Return the rows of one GPU from aiconfigurator's data under `root`. Raises CostModelError for an unknown GPU."""
    if folder not in SOURCES:
        raise CostModelError(f"no attention data of {folder}; there are {', '.join(SOURCES)}")
    source, place = SOURCES[folder], root / folder
    decode = [plain_decodes(place / source.attention), *_by_format(mla_decodes, place, source.mla_decode)]
    prefill = [plain_prefills(place / source.attention), *_by_format(mla_prefills, place, source.mla_prefill)]
    latent = dict.fromkeys((*source.mla_prefill.values(), *source.mla_decode.values()))
    return AttentionRows(
        decode=_merged(pd.concat(decode), _DECODE),
        prefill=_merged(pd.concat(prefill), _PREFILL),
        splits_keys=source.splits_keys,
        source=f"aiconfigurator-core {', '.join(f'{folder}/{part}' for part in (source.attention, *latent))}",
    )


def taken_attention(folder: str) -> dict[str, str]:
    """Return the folder in use below the GPU's, by operator and format of the cache ("mla prefill bf16")."""
    source = SOURCES.get(folder)
    if source is None:
        return {}
    plain = {f"{name} {kv_dtype}": source.attention for name in ("decode", "prefill") for kv_dtype in ("bf16", "fp8")}
    windows = {f"{group}, windows": place for group, place in plain.items()}
    latent = (("mla decode", source.mla_decode), ("mla prefill", source.mla_prefill))
    return {
        **plain,
        **windows,
        **{f"{name} {kv_dtype}": place for name, places in latent for kv_dtype, place in places.items()},
    }


def plain_decodes(folder: Path) -> pd.DataFrame:
    """Return the decodes without MLA in a back end's folder: the columns of `AttentionRows`, repeated shapes not
    merged."""
    rows = _plain(folder / "generation_attention_perf.parquet")
    return rows.assign(context=rows["isl"] + rows["step"])[_DECODE]


def plain_prefills(folder: Path) -> pd.DataFrame:
    """Return the whole prompts without MLA in a back end's folder, in the form of `plain_decodes`."""
    rows = _plain(folder / "context_attention_perf.parquet")
    return rows.assign(context=rows["step"], tokens=rows["isl"])[_PREFILL]


def mla_decodes(folder: Path) -> pd.DataFrame:
    """Return the decodes with MLA in a back end's folder, without the projections."""
    rows = _mla(folder / "generation_mla_perf.parquet")
    return rows.assign(context=rows["isl"] + rows["step"])[_DECODE]


def mla_prefills(folder: Path) -> pd.DataFrame:
    """Return the whole prompts with MLA in a back end's folder, without the projections."""
    rows = _mla(folder / "context_mla_perf.parquet")
    return rows.assign(context=rows["step"], tokens=rows["isl"])[_PREFILL]


def mla_modules(path: Path, prefill: bool) -> pd.DataFrame:
    """Return the calls of a table of whole MLA modules of DeepSeek-V3 in BF16, projections and norms included."""
    table = pd.read_parquet(path)
    rows = _mla_columns(table[table["gemm_type"] == "bfloat16"])
    if prefill:
        return rows.assign(context=rows["step"], tokens=rows["isl"])[_PREFILL]
    return rows.assign(context=rows["step"])[_DECODE]


def _by_format(read: Callable[[Path], pd.DataFrame], place: Path, folders: Mapping[str, str]) -> Iterator[pd.DataFrame]:
    """Return the rows of the folder of each cache format."""
    for kv_dtype, folder in folders.items():
        rows = read(place / folder)
        yield rows[rows["kv_dtype"] == kv_dtype]


def own_rows(frames: Mapping[str, pd.DataFrame], before: AttentionRows | None) -> AttentionRows | None:
    """Return the rows of CSV files (`measurements`), or of `before` if there are none, by operator; None without both.

    They do not include chunks on earlier context (`own_chunks`).
    """
    decode, prefill = frames.get("decode_attention"), frames.get("prefill_attention")
    if prefill is not None:
        prefill = prefill[prefill["context"] == 0]
    found = [frame for frame in (decode, prefill) if frame is not None and len(frame)]
    if not found:
        return before
    if before is None and len(found) < 2:
        raise TooFewRowsError("attention needs rows of decode_attention and of prefill_attention without context")
    source = "; ".join(sorted({str(text) for frame in found for text in frame["source"]}))
    rows = before or AttentionRows(pd.DataFrame(), pd.DataFrame(), True, "")
    if decode is not None:
        rows = rows._replace(decode=_uniform(decode, _DECODE), splits_keys=True)
    if prefill is not None and len(prefill):
        rows = rows._replace(prefill=_uniform(prefill, _PREFILL))
    return rows._replace(source="; ".join(text for text in (rows.source, source) if text))


def own_chunks(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """Return the chunks on earlier context of CSV files (`measurements`); None if there are none."""
    found = [frames[name] for name in ("prefill_attention", CHUNKS) if name in frames]
    rows = pd.concat(found, ignore_index=True) if found else None
    if rows is None or not (rows["context"] > 0).any():
        return None
    return _uniform(rows[rows["context"] > 0], _PREFILL)


def _uniform(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return attention without MLA, whose values are as wide as its keys."""
    return _merged(rows.assign(v_head_dim=rows["head_dim"], latent=0, window=rows.get("window", 0)), columns)


def _plain(path: Path) -> pd.DataFrame:
    """Return attention with separate keys and values, without FlashAttention 4, which is used for a head_dim of 512 or
    more."""
    rows = pd.read_parquet(path)
    rows = rows[rows["kernel_source"] != "vllm_flash_attn_fa4"]
    return _renamed(rows).assign(
        kv_heads=rows["num_key_value_heads"],
        head_dim=rows["head_dim"],
        v_head_dim=rows["head_dim"],
        latent=0,
        window=rows.get("window_size", 0),
    )


def _mla(path: Path) -> pd.DataFrame:
    return _mla_columns(pd.read_parquet(path))


def _mla_columns(rows: pd.DataFrame) -> pd.DataFrame:
    return _renamed(rows).assign(kv_heads=1, head_dim=MLA_HEAD_DIM, v_head_dim=MLA_V_HEAD_DIM, latent=LATENT, window=0)


def _renamed(rows: pd.DataFrame) -> pd.DataFrame:
    formats = {"bfloat16": "bf16", "fp8": "fp8"}
    return rows.assign(
        batch=rows["batch_size"],
        heads=rows["num_heads"],
        kv_dtype=rows["kv_cache_dtype"].map(formats),
        latency_ns=rows["latency"] * 1e6,
    )


def _merged(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    return rows[columns].groupby(columns[:-1], as_index=False)["latency_ns"].median()
