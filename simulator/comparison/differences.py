"""Differences between designs other than the deployment: allowed and actual ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.scenario.schema import ModelRef
from simulator.study.same_requests import difference
from simulator.workload import RequestTable

#: The kinds of differences that can be allowed, each with its key in a scenario.
KINDS = {"model": "model.name", "weights": "model.weights", "kv_cache": "model.kv_cache", "workload": "workload"}
#: A placeholder for the fields of a model that may differ.
_ANY = ModelRef("any")


@dataclass(frozen=True, slots=True)
class AllowedDifferences:
    """The `kinds` (names in `KINDS`) in which designs may differ.

    `decoding` allows different output lengths, and rules for accepting drafts that change the output.
    """

    kinds: tuple[str, ...] = ()
    decoding: bool = False

    @classmethod
    def of(cls, names: Iterable[str], decoding: bool) -> AllowedDifferences:
        """Read the names of kinds: a list, or a text with commas. Raises InputError for an unknown name."""
        given = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)
        for name in given:
            if name not in KINDS:
                raise InputError(f"--allow-different {name}: is not known{did_you_mean(name, KINDS)}")
        return cls(tuple(kind for kind in KINDS if kind in given), decoding)

    @property
    def workload(self) -> bool:
        """Whether requests may differ."""
        return "workload" in self.kinds

    def allows(self, key: str) -> bool:
        """Return whether the values of this dotted key may differ."""
        return kind_of(key) in self.kinds

    def comparable(self, model: ModelRef) -> ModelRef:
        """Return the model with a placeholder in each field that may differ."""
        fields = [KINDS[kind].removeprefix("model.") for kind in self.kinds if kind != "workload"]
        return replace(model, **{field: getattr(_ANY, field) for field in fields})


NO_DIFFERENCES = AllowedDifferences()


@dataclass(frozen=True, slots=True)
class Differences:
    """Actual differences of the allowed kinds: the values of `keys` by design, and of the requests.

    The latter is a description of each design's requests under the first seed, or None if they are the same.
    """

    keys: dict[str, dict[str, Any]]
    requests: dict[str, dict[str, float]] | None

    @property
    def kinds(self) -> list[str]:
        """Names of `KINDS` that differ."""
        found = {kind_of(key) or "model" for key in self.keys} | ({"workload"} if self.requests is not None else set())
        return [kind for kind in KINDS if kind in found]


def kind_of(key: str) -> str | None:
    """Return the kind of a difference in this dotted key of a scenario; None if it cannot be allowed."""
    return next((kind for kind, own in KINDS.items() if key == own or key.startswith(f"{own}.")), None)


def find_differences(
    values: Mapping[str, Mapping[str, Any]], models: Mapping[str, Sequence[str]], tables: Mapping[str, RequestTable]
) -> Differences | None:
    """Return the differences between designs, None if there are none.

    Each argument is by design: the values of dotted keys, descriptions of the models that its pools serve, and its
    requests.
    """
    everywhere = dict.fromkeys(key for own in values.values() for key in own)
    keys = {key: {name: own.get(key) for name, own in values.items()} for key in everywhere}
    found = {key: by_design for key, by_design in keys.items() if len(set(map(str, by_design.values()))) > 1}
    served = {name: list(dict.fromkeys(own)) for name, own in models.items()}
    if len(set(map(str, served.values()))) > 1 and not any(key.startswith("model.") for key in found):
        found["models of pools"] = {name: "; ".join(own) for name, own in served.items()}
    first = next(iter(tables.values()))
    other_requests = any(difference(table, first) is not None for table in tables.values())
    if not found and not other_requests:
        return None
    return Differences(found, {name: _description(table) for name, table in tables.items()} if other_requests else None)


def _description(table: RequestTable) -> dict[str, float]:
    seconds = float(table.arrival_ns[-1] - table.arrival_ns[0]) / 1e9
    described: dict[str, float] = {
        "requests": len(table),
        "mean_prompt_tokens": round(float(table.prompt_tokens.mean()), 1),
        "mean_output_tokens": round(float(table.output_tokens.mean()), 1),
    }
    if seconds > 0:
        described["rate_per_s"] = float(f"{(len(table) - 1) / seconds:.4g}")
    return described
