"""Messages between GPUs."""

from __future__ import annotations

from cost_models.profiling.campaign import Kernel
from cost_models.profiling.device import Device
from cost_models.profiling.grid import Shape
from cost_models.profiling.timing import KernelError


def all_reduce(device: Device, shape: Shape) -> Kernel:
    """Prepare a sum over all processes of a BF16 message, by NCCL, in place: the numbers grow, which does not affect
    the time."""
    distributed = device.torch.distributed
    message = device.random(shape.number("bytes") // 2)
    version = ".".join(str(part) for part in device.torch.cuda.nccl.version())
    return Kernel(lambda: distributed.all_reduce(message), f"nccl {version}")


def p2p(device: Device, shape: Shape) -> Kernel:
    """Prepare a copy from this GPU to the next one. PyTorch runs it on the stream of the sender."""
    if device.peers < 2:
        raise KernelError("there is one GPU only")
    numbers = device.random(shape.number("bytes") // 2)
    received = device.torch.empty_like(numbers, device="cuda:1")
    direct = device.torch.cuda.can_device_access_peer(0, 1)
    way = "peer access" if direct else "through the host"
    return Kernel(lambda: received.copy_(numbers, non_blocking=True), f"torch {device.torch.__version__} copy_, {way}")
