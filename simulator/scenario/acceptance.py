"""Acceptance of drafts in a scenario: the key `acceptance` of `speculation`."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

from simulator.scenario.field_types import Tagged
from simulator.scenario.numbers import Fraction, PositiveFloat
from simulator.scenario.quantities import Range
from simulator.scenario.setting import setting

_Correlation = Annotated[float, Range(min=0, below=1)]


@setting()
class IidAcceptance:
    """Each draft is accepted with probability `alpha` if all drafts before it were.

    `correlation` of the steps of one request, 0 to below 1 (that of the normal scores of a Gaussian copula). It does
    not change the distribution over the steps of all requests.
    """

    TAG_KEY: ClassVar[str] = "law"
    TAG: ClassVar[str] = "iid"
    alpha: Fraction
    correlation: _Correlation = 0.0


@setting()
class TableAcceptance:
    """Each position has its own acceptance rate: from a shipped `table` (`servesim list acceptance`), or given rates.

    `cumulative` rate i is the share of steps in which drafts 1 to i are all accepted, as vLLM prints it for each
    position; `conditional` rate i is the same among the steps in which all before i are accepted. Without any of the
    three, the table is the shipped one of the method and the model. `correlation` is as in `iid`.
    """

    TAG_KEY: ClassVar[str] = "law"
    TAG: ClassVar[str] = "table"
    FROM_SCALAR: ClassVar[str] = "table"
    table: str | None = None
    cumulative: tuple[Fraction, ...] = ()
    conditional: tuple[Fraction, ...] = ()
    correlation: _Correlation = 0.0

    def __post_init__(self) -> None:
        given = [name for name in ("table", "cumulative", "conditional") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{given[1]}: cannot be given together with {given[0]}")
        for earlier, later in pairwise(self.cumulative):
            if later > earlier:
                raise ValueError(f"cumulative: must not rise, but {later:g} follows {earlier:g}")


@setting()
class MixturePart:
    """Requests of one kind, such as those of a dataset. `weight` is their share, relative to those of other kinds."""

    weight: PositiveFloat
    acceptance: Annotated[IidAcceptance | TableAcceptance, Tagged("law", "table")]


@setting()
class MixtureAcceptance:
    """Each request belongs to one of several kinds, chosen at random, in all of its steps."""

    TAG_KEY: ClassVar[str] = "law"
    TAG: ClassVar[str] = "mixture"
    parts: tuple[MixturePart, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts: needs at least one")


@setting()
class ByClassAcceptance:
    """Each class of the workload has its own law; `others` is the law of classes that are not named."""

    TAG_KEY: ClassVar[str] = "law"
    TAG: ClassVar[str] = "by_class"
    classes: dict[str, Annotated[IidAcceptance | TableAcceptance | MixtureAcceptance, Tagged("law", "table")]]
    others: Annotated[IidAcceptance | TableAcceptance | MixtureAcceptance, Tagged("law", "table")] = TableAcceptance()

    def __post_init__(self) -> None:
        if not self.classes:
            raise ValueError("classes: needs at least one")


@setting()
class ReplayAcceptance:
    """Recorded counts: line i of the JSON Lines file `file` has those of request i, as `{"accepted": [2, 0, 3]}`.

    A request with more steps than its line has repeats the line; with more requests than lines, the file is repeated.
    """

    TAG_KEY: ClassVar[str] = "law"
    TAG: ClassVar[str] = "replay"
    file: str


Acceptance = Annotated[
    TableAcceptance | IidAcceptance | MixtureAcceptance | ByClassAcceptance | ReplayAcceptance, Tagged("law", "table")
]
