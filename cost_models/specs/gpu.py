"""Specifications of GPUs: peaks, and the shares of them that kernels reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.specs.dtypes import BITS


class Kernel(NamedTuple):
    """Rates of a kind of kernel: shares of the compute peak, by number format, and of the bandwidth.

    `launch_ns` is the least time of a call. `source` is the origin of the numbers.
    """

    flops: Mapping[str, float]
    bandwidth: float
    launch_ns: float
    source: str

    def flops_share(self, dtype: str) -> float:
        """Return the share of the peak at `dtype`, or at BF16 if the kernel has no entry for it."""
        return self.flops.get(dtype, self.flops["bf16"])


class AllReduce(NamedTuple):
    """Time of an all-reduce of n bytes: `alpha_ns` + n / `bandwidth` (bytes/s)."""

    alpha_ns: float
    bandwidth: float


class GpuLink(NamedTuple):
    """A link of one GPU (or NIC), one way: its line rate in bytes/s, the share that copies reach, and their latency.

    `source` is the origin of share and latency. The rate of a link that the GPU does not have is 0.
    """

    bandwidth: float
    share: float
    latency_ns: int
    source: str


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU. Peaks are dense, in FLOP/s by number format; bandwidths are in bytes/s, NVLink's in one direction.

    `prefill_key_ns` is the time of one thread block of prefill attention for one key; `decode_extra_tokens` are read by
    decode attention beyond each sequence's context. Copies of KV use `nvlink`, `network` (one NIC of the usual server)
    and `pcie`. `calibrated_as` names the GPU with the same chip whose measured kernels are used for this one, with this
    one's peaks. `aliases` are its other names, such as that of the driver.
    """

    name: str
    hbm_bytes: int
    hbm_bandwidth: float
    peak_flops: Mapping[str, float]
    nvlink_bandwidth: float
    l2_bytes: int
    gemm: Kernel
    moe: Kernel
    prefill_attention: Kernel
    decode_attention: Kernel
    elementwise: Kernel
    prefill_key_ns: float
    decode_extra_tokens: float
    all_reduce: Mapping[int, AllReduce]
    nvlink: GpuLink
    network: GpuLink
    pcie: GpuLink
    source: str
    calibrated_as: str
    aliases: tuple[str, ...] = ()

    def compute_type(self, dtype: str) -> str:
        """Return the format in which `dtype` is multiplied: BF16 unless the hardware has a peak for it."""
        return dtype if dtype in self.peak_flops else "bf16"

    def peak(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s for numbers stored as `dtype`."""
        return self.peak_flops[self.compute_type(dtype)]

    def ridge_tokens(self, dtype: str = "bf16") -> float:
        """Return the number of tokens from which a matrix product is limited by compute: 2 FLOPs per weight and token,
        one read."""
        return self.peak(dtype) * BITS[dtype] / 8 / (2 * self.hbm_bandwidth)

    def all_reduce_over(self, gpus: int) -> AllReduce:
        """Return the all-reduce of the smallest known group of at least `gpus`; CostModelError if there is none."""
        fitting = [size for size in self.all_reduce if size >= gpus]
        if not fitting:
            sizes = ", ".join(str(size) for size in sorted(self.all_reduce))
            raise CostModelError(
                f"tensor_parallel {gpus}: the all-reduce of {self.name} is known for {sizes} GPUs only"
            )
        return self.all_reduce[min(fitting)]


_NO_LINK = GpuLink(bandwidth=0.0, share=1.0, latency_ns=0, source="the GPU has none")


def gpu_from(fields: Fields, name: str) -> GpuSpec:
    """Return the GPU that a hardware file describes."""
    kernels, links = fields.required_section("kernels"), fields.required_section("links")
    nvlink_bandwidth = float(fields.integer("nvlink_bytes_per_s", least=0))
    gpu = GpuSpec(
        name=name,
        hbm_bytes=fields.integer("hbm_bytes"),
        hbm_bandwidth=fields.number("hbm_bytes_per_s"),
        peak_flops=_by_format(fields.required_section("peak_flops")),
        nvlink_bandwidth=nvlink_bandwidth,
        l2_bytes=fields.integer("l2_bytes"),
        gemm=_kernel(kernels.required_section("gemm")),
        moe=_kernel(kernels.required_section("moe")),
        prefill_attention=_kernel(kernels.required_section("prefill_attention")),
        decode_attention=_kernel(kernels.required_section("decode_attention")),
        elementwise=_kernel(kernels.required_section("elementwise")),
        prefill_key_ns=fields.number("prefill_key_ns"),
        decode_extra_tokens=fields.number("decode_extra_tokens"),
        all_reduce=_all_reduce(fields.required_section("all_reduce")),
        nvlink=_link(links.required_section("nvlink"), nvlink_bandwidth) if nvlink_bandwidth else _NO_LINK,
        network=_link(links.required_section("network")),
        pcie=_link(links.required_section("pcie")),
        source=fields.text("source"),
        calibrated_as=fields.text("calibrated_as", default=name),
        aliases=tuple(fields.texts("names") or ()),
    )
    kernels.finish()
    links.finish()
    fields.finish()
    return gpu


def _kernel(fields: Fields) -> Kernel:
    flops = fields.section("flops")
    kernel = Kernel(
        flops={"bf16": 1.0} if flops is None else _by_format(flops, most=1.0),
        bandwidth=fields.number("bandwidth", most=1.0),
        launch_ns=fields.number("launch_ns"),
        source=fields.text("source"),
    )
    fields.finish()
    return kernel


def _link(fields: Fields, bandwidth: float | None = None) -> GpuLink:
    """Return a link, with its own line rate unless it is given."""
    link = GpuLink(
        bandwidth=float(fields.integer("bytes_per_s")) if bandwidth is None else bandwidth,
        share=fields.number("share", most=1.0),
        latency_ns=fields.integer("latency_ns"),
        source=fields.text("source"),
    )
    fields.finish()
    return link


def _by_format(fields: Fields, most: float = 1e18) -> dict[str, float]:
    """Return a number for each number format; BF16 is required."""
    numbers = {key: fields.number(key, most=most) for key in ("bf16", *fields.names()) if key in BITS}
    fields.finish()
    return numbers


def _all_reduce(fields: Fields) -> dict[int, AllReduce]:
    sizes = {}
    for key in fields.names():
        if not key.removeprefix("gpus_").isdigit():
            continue
        entry = fields.required_section(key)
        sizes[int(key.removeprefix("gpus_"))] = AllReduce(entry.number("alpha_ns"), entry.number("bytes_per_s"))
        entry.finish()
    fields.text("source")
    fields.finish()
    return sizes
