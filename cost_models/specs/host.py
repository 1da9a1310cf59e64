"""Times of a step and of a request beside the model's kernels: CPU, launches, sampling, HTTP front end."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from cost_models.files.fields import Fields

_SECOND = 1e9
#: The largest values of the terms that are not times, and the longest time, in seconds, of the others.
_MOST = {"kernel_scale": 1e3, "graph_tokens": 1e9}
_LONGEST = 60.0


class FrontEnd(NamedTuple):
    """Time of a request from the client to the scheduler: `request_ns`, and `running_ns` for each running one."""

    request_ns: int = 0
    running_ns: int = 0


NO_FRONT_END = FrontEnd()


@dataclass(frozen=True, slots=True)
class HostModel:
    """The terms of one engine on one kind of host, the same for all models. Times are in seconds.

    On the GPU, in the time of every step:
        kernel_scale: time of a kernel inside a CUDA graph, as a multiple of its time alone.
        device_step: a step's fixed part (input copies, graph launch, sampling kernels).
        device_logit: per sampled sequence and entry of the vocabulary (sampling passes over the logits).
        device_sync: per all-reduce and doubling of the group (GPUs wait for the last one).
        graph_tokens: the largest step, in tokens, that runs as a CUDA graph; 0 is no limit.
        graph_miss: added to a larger step, whose kernels are launched one by one.
    Of speculative decoding, beside the kernels of the target and of the drafter:
        draft_step: added to a step that verifies or proposes drafts (rejection sampling, the drafter's inputs).
        draft_pass: launching a pass of a drafter; kernels that take longer hide it.
        draft_layer: added to draft_pass for each layer of the drafter after its first (of Medusa, each head).
        draft_sequence: added to draft_pass for each sequence (engines that prepare a pass's inputs one by one).
        draft_eagle3_step: added by EAGLE-3 to draft_step (three hidden states are kept, and combined into one).
        draft_eagle3_pass: added by EAGLE-3 to draft_pass, for any vocabulary.
        draft_lookup: n-gram, searching one sequence.
    On the CPU, hidden behind the GPU under asynchronous scheduling:
        cpu_step: preparing a step (scheduler, input tensors, output processing).
        cpu_sequence: added for each decode or chunk of the step.
        cpu_prefill_step: added to a step with prompt tokens.
    Of a request, in its TTFT:
        request: HTTP, tokeniser and transfer to the scheduler.
        request_running: added for each running stream (the front end serves them in turn).
    """

    kernel_scale: float = 1.0
    device_step: float = 0.0
    device_logit: float = 0.0
    device_sync: float = 0.0
    graph_tokens: float = 0.0
    graph_miss: float = 0.0
    draft_step: float = 0.0
    draft_pass: float = 0.0
    draft_layer: float = 0.0
    draft_sequence: float = 0.0
    draft_eagle3_step: float = 0.0
    draft_eagle3_pass: float = 0.0
    draft_lookup: float = 0.0
    cpu_step: float = 0.0
    cpu_sequence: float = 0.0
    cpu_prefill_step: float = 0.0
    request: float = 0.0
    request_running: float = 0.0

    @property
    def front_end(self) -> FrontEnd:
        """The terms of a request, in whole ns."""
        return FrontEnd(round(self.request * _SECOND), round(self.request_running * _SECOND))


#: A host without any time of its own: kernels alone.
NO_HOST = HostModel()


def host_from(data: Fields, gpu: str) -> HostModel:
    """Return the host model that a file describes: its `terms`, replaced by those in `gpus` for this GPU.

    Missing terms of speculative decoding are 0. Raises CostModelError for a term that is unknown, missing, or not a
    number from 0 to its limit (times: 60 s).
    """
    data.text("engine")
    data.text("source")
    section = data.required_section("terms")
    required = [field.name for field in fields(HostModel) if not field.name.startswith("draft_")]
    drafting = [name for name in section.names() if name.startswith("draft_")]
    host = HostModel(**_terms(section, required + drafting))
    gpus = data.section("gpus")
    for name in gpus.names() if gpus is not None else ():
        assert gpus is not None
        section = gpus.required_section(name)
        own = _terms(section, section.names())
        if name == gpu:
            host = replace(host, **own)
    if gpus is not None:
        gpus.finish()
    data.finish()
    return host


def _terms(section: Fields, names: list[str]) -> dict[str, float]:
    known = {field.name for field in fields(HostModel)}
    found = {name: section.number(name, zero=True, most=_MOST.get(name, _LONGEST)) for name in names if name in known}
    section.finish()
    return found
