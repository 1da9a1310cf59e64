"""The contract between the roofline and the kernels of a GPU: what one call of each operator takes.

There are two implementations: `EstimatedKernels` knows the peaks of a GPU and a guess of the share that kernels
reach, `CalibratedKernels` laws fitted to measured kernels. Every time is in ns, of one GPU, and of one layer
where there are layers. Counts are float arrays; an element's time does not depend on the array's length, and never
decreases with the count.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cost_models.roofline.operands import Experts, Floats, Heads


class DecodeCost(NamedTuple):
    """Decode attention of one layer, each array by number of decodes. With `keys` that all decodes attend to it takes

        launch + key x keys - saved x max(0, 1 - keys / cold_keys)

    A call on few keys does not pay all that one on many does beside its bytes (filling the GPU's pipelines): `saved` is
    what it spares without any, and nothing is spared from `cold_keys` on. Calls that see a window of longer contexts
    spare nothing: their time is `launch` + `key` x (keys in the windows).

    `launch`, and decodes x `key`, never decrease, `saved` never grows: a decode as long as the others' mean, or longer,
    never shortens a step. With a constant `key` none does; but kernels that do not split the keys of a sequence take
    longer for each where there are few sequences.
    """

    launch: Floats
    key: Floats
    saved: Floats
    cold_keys: float


class PrefillCost(Protocol):
    """Prefill attention of one layer, chunks of any length on any earlier context in one kernel.

    A call takes `launch_ns` + max(sum of the chunks' work, longest chunk's path); the path of a chunk is its tokens x
    `serial_ns` + the earlier ones that it attends to x `context_serial_ns`.
    """

    @property
    def launch_ns(self) -> float:
        """Least time of a call, in ns."""

    @property
    def serial_ns(self) -> float:
        """Time in which one thread block passes a key of its own chunk: no chunk takes less, however few its tokens."""

    @property
    def context_serial_ns(self) -> float:
        """Time in which one thread block passes a key of the earlier context."""

    def work_ns(self, tokens: Floats, context: Floats, window: int) -> Floats:
        """Time of chunks of `tokens` on `context` earlier ones, the GPU to itself; `window` 0 is none."""


class Kernels(Protocol):
    """Times of the operators on one kind of GPU."""

    def matrix_ns(self, dtype: str, rows: int, columns: int, tokens: Floats) -> Floats:
        """A product of `tokens` x `rows` activations with a `rows` x `columns` matrix stored as `dtype`."""

    def experts_ns(self, experts: Experts, tokens: Floats, groups: int = 1) -> Floats:
        """The fused kernels of a mixture of experts for `tokens`, routing and sorting included.

        Of `groups` GPUs that share the experts, each has whole ones; the time is that of the busiest.
        """

    def elementwise_ns(self, bytes_each: float, count: Floats) -> Floats:
        """A kernel that moves `bytes_each` for each of `count` tokens and hardly computes: norm, RoPE, activation."""

    def all_reduce_ns(self, gpus: int, size: Floats) -> Floats:
        """An all-reduce of messages of `size` bytes over `gpus`. Raises CostModelError for more than are known."""

    def all_to_all_ns(self, phase: str, gpus: int, copies: Floats, size: Floats) -> Floats:
        """The exchange before (`phase` dispatch) or after (combine) the experts: each of `gpus` sends `copies` of
        tokens, `size` bytes in all, to the others. Raises CostModelError for more GPUs than are known."""

    def send_ns(self, link: str, size: Floats) -> Floats:
        """A message of `size` bytes from one GPU to another over a `link`: within a `node`, or over the `network`."""

    def decode_attention(self, heads: Heads, decodes: Floats) -> DecodeCost:
        """Attention of decodes whose keys and values come from HBM."""

    def prefill_attention(self, heads: Heads) -> PrefillCost:
        """Attention of prompt chunks, causal."""
