"""The prices of GPUs in a scenario."""

from __future__ import annotations

from typing import Annotated

from simulator.scenario.quantities import Range
from simulator.scenario.setting import setting

Price = Annotated[float, Range(min=0, max=1e6)]


@setting()
class Pricing:
    """Price of an hour of one GPU: the same for all, or by the name of the GPU."""

    usd_per_gpu_hour: Price | dict[str, Price]

    def __post_init__(self) -> None:
        if self.usd_per_gpu_hour == {}:
            raise ValueError("usd_per_gpu_hour: needs the price of each GPU of the deployment, such as {h100-sxm: 2.5}")
