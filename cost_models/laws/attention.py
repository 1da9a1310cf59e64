"""Measured attention: the kinds of kernels with laws on a GPU, and the choice of a kind for given heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.kernels.contract import DecodeCost
from cost_models.laws.decode_attention import DecodeKind
from cost_models.laws.prefill_attention import PrefillKind, PrefillTimes
from cost_models.roofline.operands import Floats, Heads
from cost_models.specs.gpu import GpuSpec


@dataclass(frozen=True)
class AttentionLaws:
    """The attention of one GPU.

    Heads of a kind that was not measured use the law of the nearest measured kind, with their own FLOPs and bytes: a
    cache in FP8, for example, takes half the time of one in BF16 if only BF16 was measured.
    """

    gpu: GpuSpec
    decode: tuple[DecodeKind, ...]
    prefill: tuple[PrefillKind, ...]

    def __post_init__(self) -> None:
        for name, kinds in (("decode", self.decode), ("prefill", self.prefill)):
            if not any(not kind.latent for kind in kinds):
                raise CostModelError(f"the calibrated attention of {self.gpu.name} has no {name} law")

    def decode_attention(self, heads: Heads, decodes: Floats) -> DecodeCost:
        """Return the terms of decode attention, by number of decodes."""
        return self._decode_kind(heads).cost(heads, self.gpu, decodes)

    def prefill_attention(self, heads: Heads) -> PrefillTimes:
        """Return the cost of prefill attention."""
        return self._prefill_kind(heads).cost(heads, self.gpu)

    def outside(self, heads: Heads) -> list[str]:
        """Return the differences between these heads and the kinds whose laws they use, as texts for a warning."""
        found = []
        for name, kind in (("decode", self._decode_kind(heads)), ("prefill", self._prefill_kind(heads))):
            if bool(heads.latent) != kind.latent:
                found.append(f"{name} attention with MLA (calibrated without)")
            elif kind.latent and heads.heads != kind.heads:
                found.append(f"{name} attention with {heads.heads} MLA heads a GPU (calibrated: {kind.heads})")
            elif not kind.latent and heads.head_dim != kind.head_dim:
                found.append(f"{name} attention with head_dim {heads.head_dim} (calibrated: {kind.head_dim})")
            if _stored(heads) != kind.kv_dtype:
                found.append(f"{name} attention with a KV cache in {heads.kv_dtype} (calibrated: {kind.kv_dtype})")
        most = self._prefill_kind(heads).kv_heads[-1]
        if heads.kv_heads > most:
            found.append(f"prefill attention with {heads.kv_heads} KV heads a GPU (calibrated up to {most:g})")
        return found

    def _decode_kind(self, heads: Heads) -> DecodeKind:
        shared = heads.heads > heads.kv_heads
        return min(self.decode, key=lambda kind: (_distance(kind, heads), kind.shared != shared))

    def _prefill_kind(self, heads: Heads) -> PrefillKind:
        return min(self.prefill, key=lambda kind: _distance(kind, heads))

    def to_json(self) -> dict[str, Any]:
        """Both lists of kinds."""
        return {
            "decode": [kind.to_json() for kind in self.decode],
            "prefill": [kind.to_json() for kind in self.prefill],
        }

    @staticmethod
    def from_json(data: Fields, gpu: GpuSpec) -> AttentionLaws:
        """Return the laws from the result of `to_json`, for a GPU with these peaks. Raises CostModelError if they are
        not valid."""
        decode, prefill = data.sections("decode"), data.sections("prefill")
        data.finish()
        return AttentionLaws(
            gpu,
            tuple(DecodeKind.from_json(kind) for kind in decode),
            tuple(PrefillKind.from_json(kind) for kind in prefill),
        )


def _distance(kind: DecodeKind | PrefillKind, heads: Heads) -> tuple[bool, bool, float]:
    """Return the distance of a kind from these heads: with or without MLA, then the cache's format, then the size."""
    size = heads.heads / kind.heads if kind.latent else heads.head_dim / kind.head_dim
    return kind.latent != bool(heads.latent), kind.kv_dtype != _stored(heads), abs(math.log(size))


def _stored(heads: Heads) -> str:
    """Return the format of the cache in the laws' names: FP16 is as fast as BF16."""
    return "fp8" if heads.kv_dtype == "fp8" else "bf16"
