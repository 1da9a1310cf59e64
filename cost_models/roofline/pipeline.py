"""Pipeline parallelism: the time of a step in each stage, and of the sends between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cost_models.kernels.calibrated import CalibratedKernels, kernels_of
from cost_models.kernels.contract import Kernels
from cost_models.roofline.architecture import check_expert_split, check_tensor_parallel
from cost_models.roofline.model import Roofline, stage_roofline
from cost_models.roofline.operands import Floats
from cost_models.roofline.stages import stages_of
from cost_models.shape import BatchShape, CostModel, Ints, StageTimes, StepCost, costs_one_by_one
from cost_models.specs.dtypes import ACTIVATION_BYTES
from cost_models.specs.gpu import GpuSpec
from cost_models.specs.model import ModelSpec
from cost_models.specs.placement import DEFAULT_LIMITS, DEFAULT_SOURCES, Placement, StepLimits, TimeSources

#: GPUs of a server with NVLink between all of them (HGX); a stage that fills it sends over the network.
_NODE_GPUS = 8
#: Sends of more tokens are computed one by one.
_TABLE_TOKENS = 65_536

_T = TypeVar("_T")


class EqualStages(NamedTuple):
    """A law of whole steps, divided into `stages` equal parts (the last one has the remainder); sends take no time."""

    law: CostModel
    stages: int

    @property
    def window(self) -> int:
        """The sliding window of the model, in tokens; 0 if it has none."""
        return self.law.window

    def step_cost(self, shape: BatchShape) -> StepCost:
        """Return the times of the step `shape`."""
        return self.law.step_cost(shape)

    def stage_times(self, shape: BatchShape) -> StageTimes:
        """Return the times of the step `shape` in each stage and on each link between stages."""
        device_ns, host_ns, _ = self.law.step_cost(shape)
        before = self.stages - 1
        each = device_ns // self.stages
        return StageTimes((each,) * before + (device_ns - before * each,), (0,) * before, host_ns)

    def decode_run(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """Return the device time of each of k pure decode steps, in ns, shape (k,); `shape` is the first."""
        return self.law.decode_run(shape, k)

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        """Return the device and the host time of many pure decode steps, in ns; all arrays are (n,)."""
        return self.law.decode_costs(decodes, context, window_context)

    def breakdown(self, shape: BatchShape) -> dict[str, int]:
        """Return the device time of the step by operator, in ns."""
        return self.law.breakdown(shape)


class StagedRoofline:
    """A model whose layers are shared by the stages of a pipeline, each with its own roofline.

    Every stage takes the fixed part of a step, since each launches its kernels; the last one computes the logits and
    samples. A stage sends the hidden state and the residual of every token to the next (vLLM's intermediate tensors).
    Each GPU of a tensor-parallel stage sends a part, and the receivers gather the parts: each link carries as many
    bytes as if every GPU sent everything.
    """

    __slots__ = (
        "_kernels",
        "_links",
        "_sends",
        "_stages",
        "_token_bytes",
        "calibrated",
        "formats",
        "outside",
        "stages",
        "window",
    )

    def __init__(
        self, model: ModelSpec, stages: Sequence[Roofline], links: Sequence[str], kernels: Kernels, max_tokens: int
    ) -> None:
        self._stages = tuple(stages)
        self._links = tuple(links)
        self._kernels = kernels
        self._token_bytes = 2 * model.hidden * ACTIVATION_BYTES
        self.stages = len(self._stages)
        self.window = model.sliding_window
        #: See `Roofline`.
        self.calibrated, self.formats = self._stages[0].calibrated, self._stages[0].formats
        found = [text for stage in stages for text in stage.outside]
        if isinstance(kernels, CalibratedKernels):
            size = float(max_tokens * self._token_bytes)
            found += [text for link in links for text in kernels.send_outside(link, size)]
        self.outside = list(dict.fromkeys(found))
        self._sends = self._sends_of(np.arange(min(max_tokens, _TABLE_TOKENS) + 1, dtype=float))

    def step_cost(self, shape: BatchShape) -> StepCost:
        """Return the time of the step `shape` through all stages, without waiting."""
        stages_ns, sends_ns, host_ns = self.stage_times(shape)
        return StepCost(sum(stages_ns) + sum(sends_ns), host_ns)

    def stage_times(self, shape: BatchShape) -> StageTimes:
        """Return the times of the step `shape` in each stage and on each link between stages."""
        costs = self._of_each(lambda stage: stage.step_cost(shape))
        return StageTimes(tuple(cost.device_ns for cost in costs), self._sends_ns(shape.tokens), costs[0].host_ns)

    def decode_run(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """Return the device time of each of k pure decode steps, in ns, shape (k,); `shape` is the first."""
        runs = self._of_each(lambda stage: stage.decode_run(shape, k))
        time: NDArray[np.int64] = np.sum(runs, axis=0) + sum(self._sends_ns(shape.tokens))
        return time

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        """Return the device and the host time of many pure decode steps, in ns; all arrays are (n,)."""
        return costs_one_by_one(self, decodes, context, window_context)

    def breakdown(self, shape: BatchShape) -> dict[str, int]:
        """Return the device time by operator, of all stages together."""
        parts: dict[str, int] = {}
        for stage in self._of_each(lambda stage: stage.breakdown(shape)):
            for name, time in stage.items():
                parts[name] = parts.get(name, 0) + time
        return parts | {"send": sum(self._sends_ns(shape.tokens))}

    def bound_ns(self, shape: BatchShape) -> int:
        """Return the least time of the step through all stages, in ns; see `Roofline`."""
        return sum(self._of_each(lambda stage: stage.bound_ns(shape)))

    def _of_each(self, ask: Callable[[Roofline], _T]) -> list[_T]:
        """Return `ask` of each stage; it is called once for equal stages, which are the same object."""
        answers: dict[int, _T] = {}
        for stage in self._stages:
            if id(stage) not in answers:
                answers[id(stage)] = ask(stage)
        return [answers[id(stage)] for stage in self._stages]

    def _sends_ns(self, tokens: int) -> tuple[int, ...]:
        if tokens < len(self._sends):
            return self._sends[tokens]
        return self._sends_of(np.array([float(tokens)]))[0]

    def _sends_of(self, tokens: Floats) -> list[tuple[int, ...]]:
        """Return the times of the sends for each number of tokens."""
        size = tokens * self._token_bytes
        times = {
            link: np.where(tokens > 0, np.ceil(self._kernels.send_ns(link, size)), 0).astype(np.int64).tolist()
            for link in dict.fromkeys(self._links)
        }
        return [tuple(times[link][place] for link in self._links) for place in range(len(tokens))]


def build_pipeline(
    model: ModelSpec,
    gpu: GpuSpec,
    placement: Placement,
    limits: StepLimits = DEFAULT_LIMITS,
    sources: TimeSources = DEFAULT_SOURCES,
) -> StagedRoofline:
    """Build the rooflines of the stages of `model` on `gpu`, with the links between them.

    Stages fill servers of eight GPUs in order.

    Raises:
        CostModelError: as `build_roofline`, or there are more stages than layers.
    """
    tensor_parallel, stages = placement.tensor_parallel, placement.pipeline_parallel
    check_tensor_parallel(model, tensor_parallel)
    check_expert_split(model, placement.split)
    parts = stages_of(model, stages)
    built = {part: stage_roofline(part, gpu, placement, limits, sources) for part in dict.fromkeys(parts)}
    ends = [(place + 1) * tensor_parallel for place in range(stages - 1)]
    links = ["network" if end % _NODE_GPUS == 0 else "node" for end in ends]
    kernels = kernels_of(gpu, sources.calibration)
    return StagedRoofline(model, [built[part] for part in parts], links, kernels, limits.max_num_batched_tokens)
