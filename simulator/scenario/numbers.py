"""Types of numbers with bounds, for the fields of a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from simulator.scenario.quantities import Duration, Range

Count = Annotated[int, Range(min=1, max=10**12)]
NaturalInt = Annotated[int, Range(min=0, max=10**12)]
Tokens = Annotated[int, Range(min=1, max=10**8)]
#: Number of processes; `all` is one per core of the machine.
Jobs = Literal["all"] | Annotated[int, Range(min=1, max=1024)]
Rate = Annotated[float, Range(above=0, max=1e9)]
#: Squares and inverses of such a number are finite, too.
PositiveFloat = Annotated[float, Range(min=1e-9, max=1e12)]
Fraction = Annotated[float, Range(min=0, max=1)]
PositiveDuration = Annotated[Duration, Range(min=1)]
#: Time of one step or transfer; and the time that one token, key or descriptor adds to it.
StepDuration = Annotated[Duration, Range(max=86_400 * 10**9)]
TokenDuration = Annotated[Duration, Range(max=60 * 10**9)]
