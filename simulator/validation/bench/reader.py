"""Reader of the files of `vllm bench serve --save-result`: a load, and its measurements.

With `--save-detailed` the file has every request; else only totals, means and percentiles (`means`). Files of older
versions do not have the times at which requests were sent: a client's limit or an infinite rate may determine them,
else only means are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.errors import shown
from cost_models.files.documents import read_json
from cost_models.files.fields import Fields
from simulator.errors import InputError
from simulator.scenario.lengths import Fixed
from simulator.validation.bench.means import has_send_times, read_means
from simulator.validation.bench.server import server_of
from simulator.validation.setting import Detail, Load, Row
from simulator.workload.tables import MAX_REQUESTS, MAX_SECONDS, MAX_TOKENS

Floats = NDArray[np.float64]

_NS = 10**9
_PERCENTS = (50, 90, 95, 99)
#: By column: the largest number (the least is 0), and whether its numbers are whole.
_RANGES = {
    "input_lens": (MAX_TOKENS, True),
    "output_lens": (MAX_TOKENS, True),
    "ttfts": (MAX_SECONDS, False),
    "start_times": (MAX_SECONDS, False),
}


def read_bench(path: Path, given: Mapping[str, str], parts: int = 1) -> list[Row]:
    """Read the requests of a result file as one row, or as `parts` rows of equal size in the order they were sent.

    `given` has values that are not in the file, by the names of `server.OPTIONS`: `gpu`, and settings that differ from
    the defaults. A file without requests gives one row, whatever `parts`.

    Raises:
        InputError: no such file, no JSON object, neither requests nor means, arrays of different lengths, an unknown
            model or GPU, fewer requests than parts.
    """
    data = _read(path)
    server = server_of(path, data, given)
    if not has_send_times(data):
        return [read_means(path, data, server)]
    sent = _sent(path, data)
    if len(sent.begins) < parts:
        raise InputError(f"{path}: {len(sent.begins)} requests succeeded, too few for {parts} parts")
    order = np.argsort(sent.begins, kind="stable")
    found = []
    for part, chosen in enumerate(np.array_split(order, parts)):
        of_part = sent.take(chosen)
        load = of_part.load(sent.begins.min(), _limit(path, data))
        row = server.row(
            str(path) if parts == 1 else f"{path} part {part + 1}",
            of_part.metrics(),
            server.setting(_mean_length(of_part.prompts), _mean_length(of_part.outputs), load),
            sent.failures,
        )
        found.append(row.at_stage(str(path), part))
    return found


def _mean_length(tokens: Floats) -> Fixed:
    """Return a law with the mean of recorded lengths, for a setting; requests have the recorded lengths themselves."""
    return Fixed(max(1, round(float(np.mean(tokens)))))


@dataclass(frozen=True, slots=True)
class _Sent:
    """Successful requests: times at which they were sent, times to first token and of decoding (seconds), and lengths.

    `gaps` are the times between the pieces of output that each request received, an array a request.
    """

    begins: Floats
    ttfts: Floats
    decodes: Floats
    prompts: Floats
    outputs: Floats
    gaps: Sequence[Floats]
    failures: tuple[str, ...] = ()

    def take(self, rows: NDArray[np.intp]) -> _Sent:
        """Return the requests in these rows."""
        return _Sent(
            self.begins[rows],
            self.ttfts[rows],
            self.decodes[rows],
            self.prompts[rows],
            self.outputs[rows],
            [self.gaps[row] for row in rows],
        )

    def load(self, first: float, limit: int | None) -> Load:
        """Return the load of these requests; times are counted from when the `first` of all requests was sent.

        Under a client's limit a request is sent when another has ended: the simulation determines these times.
        """
        sent = np.zeros(len(self.begins)) if limit else self.begins - first
        detail = Detail(
            tuple(round(begin * _NS) for begin in sent.tolist()),
            tuple(int(tokens) for tokens in self.prompts.tolist()),
            tuple(int(tokens) for tokens in self.outputs.tolist()),
            limit,
        )
        return Load(len(sent), detail=detail)

    def metrics(self) -> dict[str, float]:
        """Return the measurements, by the column names of measured rows."""
        several = self.outputs > 1
        e2e = self.ttfts + self.decodes
        tpot = self.decodes[several] / (self.outputs[several] - 1)
        found: dict[str, float] = {}
        for name, seconds in (("ttft", self.ttfts), ("e2e", e2e), ("tpot", tpot)):
            if len(seconds):
                found[f"{name}_mean_ms"] = float(seconds.mean() * 1e3)
                found |= _percentiles(name, seconds)
        if several.any():
            found["itl_mean_ms"] = float(self.decodes[several].sum() / (self.outputs[several] - 1).sum() * 1e3)
            found |= self._gap_percentiles()
        lasted = float((self.begins + e2e).max() - self.begins.min())
        found["req_per_s"] = len(e2e) / lasted
        found["output_tok_s"] = float(self.outputs.sum()) / lasted
        found["total_tok_s"] = float(self.outputs.sum() + self.prompts.sum()) / lasted
        return found

    def _gap_percentiles(self) -> dict[str, float]:
        """Return percentiles of the gaps between tokens; none if the client received several tokens in one piece."""
        gaps = np.concatenate(self.gaps)
        return _percentiles("itl", gaps) if len(gaps) == int((self.outputs - 1).sum()) else {}


def _percentiles(name: str, seconds: Floats) -> dict[str, float]:
    return {f"{name}_p{percent}_ms": float(np.percentile(seconds, percent) * 1e3) for percent in _PERCENTS}


def _sent(path: Path, data: Mapping[str, Any]) -> _Sent:
    prompts, outputs, ttfts = (_column(path, data, name) for name in ("input_lens", "output_lens", "ttfts"))
    errors, itls = data.get("errors") or [""] * len(prompts), data.get("itls")
    if not isinstance(errors, list):
        raise InputError(f"{path}: errors: expected a list, found {shown(errors)}")
    if not len(prompts) == len(outputs) == len(ttfts) == len(errors):
        raise InputError(f"{path}: input_lens, output_lens, ttfts and errors have different lengths")
    if not isinstance(itls, list) or len(itls) != len(prompts):
        raise InputError(f"{path}: itls: expected a list for each of the {len(prompts)} requests")
    decodes = np.array([math.fsum(_gaps(path, at, gaps)) for at, gaps in enumerate(itls)])
    good = np.array([not error for error in errors]) & (prompts > 0) & (outputs > 0) & (ttfts > 0)
    if not good.any():
        raise InputError(f"{path}: every request failed")
    failed = int((~good).sum())
    return _Sent(
        _begins(path, data, len(prompts))[good],
        ttfts[good],
        decodes[good],
        prompts[good],
        outputs[good],
        [np.array(gaps, float) for gaps, kept in zip(itls, good, strict=True) if kept],
        (f"{failed} failed requests left out",) if failed else (),
    )


def _limit(path: Path, data: Mapping[str, Any]) -> int | None:
    """Return the client's limit of concurrent requests, if it alone determined when they were sent."""
    if data.get("max_concurrency") is None:
        return None
    limit = Fields(str(path), data).integer("max_concurrency", least=0, most=MAX_REQUESTS)
    alone = data.get("request_rate") in (None, "inf", math.inf) or "start_times" not in data
    return limit if limit and alone else None


def _begins(path: Path, data: Mapping[str, Any], count: int) -> Floats:
    """Return when each request was sent, in seconds; all at once where the file, of an older version, has none."""
    if "start_times" not in data:
        return np.zeros(count)
    begins = _column(path, data, "start_times")
    if len(begins) != count:
        raise InputError(f"{path}: start_times: expected {count} numbers, found {len(begins)}")
    return begins


def _column(path: Path, data: Mapping[str, Any], name: str) -> Floats:
    values = data.get(name)
    if not isinstance(values, list) or not values:
        raise InputError(f"{path}: {name}: missing; run `vllm bench serve` with --save-result --save-detailed")
    most, whole = _RANGES[name]
    return np.array(Fields(str(path), data).numbers(name, most=most, whole=whole), float)


def _gaps(path: Path, at: int, gaps: object) -> list[float]:
    """Return the gaps between the tokens of one request."""
    return Fields(str(path), {f"itls[{at}]": gaps}).numbers(f"itls[{at}]", most=MAX_SECONDS)


def _read(path: Path) -> Mapping[str, Any]:
    data = read_json(path)
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: expected one JSON object")
    return data
