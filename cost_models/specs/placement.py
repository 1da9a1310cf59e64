"""Placement of a model on GPUs, and the limits of the steps that it computes there."""

from __future__ import annotations

from typing import NamedTuple

from cost_models.specs.host import NO_HOST, HostModel


class ExpertSplit(NamedTuple):
    """Split of the routed experts of a layer over `gpus`: whole experts (expert parallelism), or a part of the width of
    each.

    With data parallelism the GPUs are those of all ranks, as in vLLM.
    """

    gpus: int = 1
    whole: bool = False

    @property
    def widths(self) -> int:
        """The number of parts into which the width of an expert is split."""
        return 1 if self.whole else self.gpus

    @property
    def groups(self) -> int:
        """The number of groups into which the experts are split."""
        return self.gpus if self.whole else 1


class Placement(NamedTuple):
    """The GPUs of one replica, and the number formats on them.

    `tensor_parallel` GPUs share each layer, `pipeline_parallel` such groups share the layers; `data_parallel` ranks
    share the experts of a mixture of experts, by width or, with `expert_parallel`, as whole experts. `weights` and
    `kv_cache` are number formats as in `dtypes`; "auto" is the model's own.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    weights: str = "auto"
    kv_cache: str = "auto"

    @property
    def split(self) -> ExpertSplit:
        """The split of the experts over the GPUs."""
        return ExpertSplit(self.tensor_parallel * self.data_parallel, self.expert_parallel)

    @property
    def gpus(self) -> int:
        """GPUs of the replica."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel


class StepLimits(NamedTuple):
    """The largest step of a scheduler, by vLLM's names."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256


class TimeSources(NamedTuple):
    """Sources of times beside the model and the GPU: a host model, and the `calibration` of kernels (see
    `kernels_of`)."""

    host: HostModel = NO_HOST
    calibration: str = "auto"


SINGLE_GPU = Placement()
DEFAULT_LIMITS = StepLimits()
DEFAULT_SOURCES = TimeSources()
