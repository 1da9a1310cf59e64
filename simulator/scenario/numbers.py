"""Numbers with bounds, as fields of a scenario have them."""

from __future__ import annotations

from typing import Annotated

from simulator.scenario.quantities import Duration, Range

Count = Annotated[int, Range(min=1, max=10**12)]
NaturalInt = Annotated[int, Range(min=0, max=10**12)]
Tokens = Annotated[int, Range(min=1, max=10**8)]
Rate = Annotated[float, Range(above=0, max=1e9)]
#: Squares and inverses of it are finite, too.
PositiveFloat = Annotated[float, Range(min=1e-9, max=1e12)]
Fraction = Annotated[float, Range(min=0, max=1)]
PositiveDuration = Annotated[Duration, Range(min=1)]
#: What one step or one transfer may take, and what one token, key or descriptor adds to it.
StepDuration = Annotated[Duration, Range(max=86_400 * 10**9)]
TokenDuration = Annotated[Duration, Range(max=60 * 10**9)]
