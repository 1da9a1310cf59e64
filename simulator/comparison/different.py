"""What designs may differ in beside their deployments, if that is accepted: and what they then do differ in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.scenario.schema import ModelRef
from simulator.study.same_requests import difference
from simulator.workload import RequestTable

#: What can be accepted, and the keys of a scenario that it is.
KINDS = {"model": "model.name", "weights": "model.weights", "kv_cache": "model.kv_cache", "workload": "workload"}
#: What a part of a model that may differ is replaced with before models are compared.
_ANY = ModelRef("any")


@dataclass(frozen=True, slots=True)
class Accepted:
    """`different` names what may differ of `KINDS`; `decoding` accepts other output budgets and laws of the output."""

    different: tuple[str, ...] = ()
    decoding: bool = False

    @classmethod
    def of(cls, names: Iterable[str], decoding: bool) -> Accepted:
        """What is accepted under these names. Raises InputError for one that is not known."""
        given = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)
        for name in given:
            if name not in KINDS:
                raise InputError(f"--allow-different {name}: is not known{did_you_mean(name, KINDS)}")
        return cls(tuple(kind for kind in KINDS if kind in given), decoding)

    @property
    def workload(self) -> bool:
        """Whether requests may differ."""
        return "workload" in self.different

    def takes(self, key: str) -> bool:
        """Whether the values of this dotted key may differ."""
        return kind_of(key) in self.different

    def alike(self, model: ModelRef) -> ModelRef:
        """The model without what may differ of it."""
        fields = [KINDS[kind].removeprefix("model.") for kind in self.different if kind != "workload"]
        return replace(model, **{field: getattr(_ANY, field) for field in fields})


NOTHING = Accepted()


@dataclass(frozen=True, slots=True)
class Difference:
    """What was accepted to differ, and does: the values of `keys` by design; and if the requests do, what those of each
    design under the first seed are."""

    keys: dict[str, dict[str, Any]]
    requests: dict[str, dict[str, float]] | None

    @property
    def kinds(self) -> list[str]:
        """The names of `KINDS` that differ."""
        found = {kind_of(key) or "model" for key in self.keys} | ({"workload"} if self.requests is not None else set())
        return [kind for kind in KINDS if kind in found]


def kind_of(key: str) -> str | None:
    """Under which name a difference in this dotted key of a scenario can be accepted; None if it cannot."""
    return next((kind for kind, own in KINDS.items() if key == own or key.startswith(f"{own}.")), None)


def difference_of(
    values: Mapping[str, Mapping[str, Any]], models: Mapping[str, Sequence[str]], tables: Mapping[str, RequestTable]
) -> Difference | None:
    """What designs differ in, each of the arguments by design: the values of shared keys, the models that its pools
    serve, in words, and its requests. None if in nothing."""
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
    return Difference(found, {name: _described(table) for name, table in tables.items()} if other_requests else None)


def _described(table: RequestTable) -> dict[str, float]:
    seconds = float(table.arrival_ns[-1] - table.arrival_ns[0]) / 1e9
    described: dict[str, float] = {
        "requests": len(table),
        "mean_prompt_tokens": round(float(table.prompt_tokens.mean()), 1),
        "mean_output_tokens": round(float(table.output_tokens.mean()), 1),
    }
    if seconds > 0:
        described["rate_per_s"] = float(f"{(len(table) - 1) / seconds:.4g}")
    return described
