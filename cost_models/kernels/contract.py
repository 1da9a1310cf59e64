"""The interface between the roofline and the kernels of a GPU: the time of one call of each operator.

There are two implementations: `EstimatedKernels` uses the peaks of a GPU and estimated shares of them,
`CalibratedKernels` uses laws fitted to measured kernels. Every time is in ns, for one GPU, and for one layer if the
operator belongs to a layer. Counts are float arrays; the time of an element does not depend on the array's length, and
never decreases with the count.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cost_models.roofline.operands import Experts, Floats, Heads


class DecodeCost(NamedTuple):
    """Decode attention of one layer; each array is indexed by the number of decodes.

    A call in which the decodes attend to `keys` keys in total takes

        launch + key x keys - saved x max(0, 1 - keys / cold_keys)

    A call on few keys does not need all the time that a call on many keys needs beside its bytes (filling the GPU's
    pipelines): `saved` is the difference for a call without keys, and 0 for calls on `cold_keys` or more. For calls on
    a window of longer contexts nothing is saved: their time is `launch` + `key` x (keys in the windows).

    `launch` and decodes x `key` never decrease and `saved` never grows with the number of decodes, so that one more
    decode with at least the mean context of the others never shortens a step. With a constant `key` this holds for any
    decode; kernels that do not split the keys of a sequence have a larger `key` for few sequences.
    """

    launch: Floats
    key: Floats
    saved: Floats
    cold_keys: float


class PrefillCost(Protocol):
    """Prefill attention of one layer: chunks of any length, with any earlier context, in one kernel.

    A call takes `launch_ns` + max(sum of the chunks' work, longest time of a chunk's path). The path of a chunk takes
    its tokens x `serial_ns` + its earlier context x `context_serial_ns`.
    """

    @property
    def launch_ns(self) -> float:
        """The least time of a call, in ns."""

    @property
    def serial_ns(self) -> float:
        """The time of one thread block for a key of its own chunk: a chunk takes at least this for each of its keys."""

    @property
    def context_serial_ns(self) -> float:
        """The time of one thread block for a key of the earlier context."""

    def work_ns(self, tokens: Floats, context: Floats, window: int) -> Floats:
        """Return the time of chunks of `tokens` after `context` earlier tokens, each alone on the GPU; `window` 0 is
        none."""


class Kernels(Protocol):
    """Times of the operators on one kind of GPU."""

    def matrix_ns(self, dtype: str, rows: int, columns: int, tokens: Floats) -> Floats:
        """Return the time of `tokens` x `rows` activations times a `rows` x `columns` matrix in the format `dtype`."""

    def experts_ns(self, experts: Experts, tokens: Floats, groups: int = 1) -> Floats:
        """Return the time of the fused kernels of a mixture of experts for `tokens`, routing and sorting included.

        `groups` is the number of GPUs that share the experts, each with whole experts; the time is that of the busiest
        GPU.
        """

    def elementwise_ns(self, bytes_each: float, count: Floats) -> Floats:
        """Return the time of a memory-bound kernel that moves `bytes_each` for each of `count` tokens: norm, RoPE,
        activation."""

    def all_reduce_ns(self, gpus: int, size: Floats) -> Floats:
        """Return the time of an all-reduce of `size` bytes over `gpus`. Raises CostModelError for more GPUs than are
        known."""

    def all_to_all_ns(self, phase: str, gpus: int, copies: Floats, size: Floats) -> Floats:
        """Return the time of the exchange before (`phase` dispatch) or after (combine) the experts.

        Each of `gpus` sends `copies` of tokens, `size` bytes in all, to the others. Raises CostModelError for more GPUs
        than are known.
        """

    def send_ns(self, link: str, size: Floats) -> Floats:
        """Return the time to send `size` bytes from one GPU to another over a `link`: within a `node`, or over the
        `network`."""

    def decode_attention(self, heads: Heads, decodes: Floats) -> DecodeCost:
        """Return the cost of decode attention whose keys and values are read from HBM."""

    def prefill_attention(self, heads: Heads) -> PrefillCost:
        """Return the cost of causal attention of prompt chunks."""
