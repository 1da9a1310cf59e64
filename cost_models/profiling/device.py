"""The GPU under test, by PyTorch, which is imported here and only for a device."""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cost_models.errors import CostModelError
from cost_models.profiling.timing import KernelError, Sample

#: Bytes of the buffer that flushes the L2 cache: larger than twice any L2 (B200: 126 MB), and large enough to keep any
#: GPU busy for the 100 us and more in which Python launches the next kernel.
_FLUSH_BYTES = 2**29
#: Least size of the buffer, as a multiple of the caches of a die.
_FLUSH_CACHES = 2


@dataclass(frozen=True)
class Device:
    """The device of kernels: PyTorch, its name of the device, and the properties by which kernels are selected.

    `capability` is CUDA's compute capability, `peers` the number of GPUs of this machine, `world` the number of
    processes that measure together, one GPU each.
    """

    torch: Any
    place: str
    gpu: str
    capability: tuple[int, int]
    peers: int = 1
    world: int = 1

    def random(self, *size: int, dtype: str = "bf16") -> Any:
        """Return a tensor of random numbers: standard normal, or uniform for int8.

        Zeros would need less power than a model's weights, and so run at higher clocks.
        """
        torch = self.torch
        if dtype == "int8":
            return torch.randint(-128, 128, size, dtype=torch.int8, device=self.place)
        normal = torch.randn(size, dtype=torch.bfloat16, device=self.place)
        return normal.to(torch.float8_e4m3fn) if dtype == "fp8" else normal

    def ones(self, *size: int) -> Any:
        """Return a tensor of FP32 ones: scales of a quantised tensor."""
        return self.torch.ones(size, dtype=self.torch.float32, device=self.place)

    def need_fp8(self) -> None:
        """Raise KernelError unless the GPU multiplies FP8 (Ada, Hopper and later)."""
        if self.capability < (8, 9):
            raise KernelError("this GPU has no FP8 arithmetic")


def open_device() -> Device:
    """Return the current process's GPU; under torchrun, that of its rank, with the process group opened.

    Raises CostModelError if there is no PyTorch, or it finds no GPU.
    """
    torch = _import_torch()
    if not torch.cuda.is_available():
        raise CostModelError("PyTorch finds no CUDA GPU; run this on the machine whose GPU is to be measured")
    rank, world = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(rank)
    if world > 1:
        torch.distributed.init_process_group("nccl", device_id=torch.device(f"cuda:{rank}"))
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    return Device(
        torch=torch,
        place=f"cuda:{rank}",
        gpu=torch.cuda.get_device_name(rank),
        capability=torch.cuda.get_device_capability(rank),
        peers=torch.cuda.device_count(),
        world=world,
    )


@functools.cache
def optional(module: str) -> Any:
    """Return the module of that name, or None if it cannot be imported: libraries for another GPU or another PyTorch
    raise many kinds of errors."""
    try:
        return importlib.import_module(module)
    except Exception:
        return None


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise CostModelError(
            "measuring kernels needs PyTorch with CUDA, which cannot be imported here "
            f"({error}); install it from pytorch.org on the machine with the GPU"
        ) from error


class CudaTimer:
    """Timer of calls on the current stream with CUDA events. Satisfies `Timer`."""

    def __init__(self, device: Device) -> None:
        torch = self._torch = device.torch
        l2_bytes = torch.cuda.get_device_properties(device.place).L2_cache_size
        numbers = max(_FLUSH_BYTES, _FLUSH_CACHES * l2_bytes + 1) // 4 + 1
        self._buffer = torch.empty(numbers, dtype=torch.float32, device=device.place)

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        return time.monotonic()

    def flush(self) -> None:
        """Queue a write of the whole buffer, and a read of it.

        Without the read, the next kernel would have to write the modified lines back to memory when it evicts them.
        """
        self._buffer.zero_()
        self._buffer.max()

    def time(self, call: Callable[[], object]) -> Sample:
        """Queue `call` between two events and wait for it.

        The result is late if the GPU reached the first event before all was queued: it may then have waited for the
        rest.
        """
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        late = start.query()
        end.synchronize()
        return Sample(start.elapsed_time(end) * 1e3, late)


class GroupTimer:
    """Timer of calls that several processes make together. Satisfies `Timer`.

    All get the same results, so that they continue in the same way: the time of the slowest, since a step waits for it.
    """

    def __init__(self, device: Device, timer: CudaTimer) -> None:
        self._device = device
        self._timer = timer

    def now(self) -> float:
        """Return the latest of the processes' clocks, in seconds."""
        return self._agree(self._timer.now())[0]

    def flush(self) -> None:
        """Flush, and let the GPUs wait for one another."""
        self._timer.flush()
        self._device.torch.distributed.all_reduce(self._device.ones(1))

    def time(self, call: Callable[[], object]) -> Sample:
        """Return the slowest process's time; it is late if any was."""
        sample = self._timer.time(call)
        us, late = self._agree(sample.us, float(sample.late))
        return Sample(us, late > 0)

    def _agree(self, *values: float) -> list[float]:
        torch, distributed = self._device.torch, self._device.torch.distributed
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device.place)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        numbers: list[float] = tensor.tolist()
        return numbers
