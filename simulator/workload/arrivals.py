"""Arrival processes. The first N arrivals do not depend on the number drawn."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from simulator.common.randomness import stream
from simulator.errors import InputError
from simulator.scenario import traffic
from simulator.workload.requests import Ints
from simulator.workload.tables import MAX_REQUESTS, MAX_SECONDS, NS

Floats = NDArray[np.float64]


def first_arrivals(process: traffic.Arrivals, seed: int, requests: int) -> Ints:
    """Return the first `requests` arrivals in ns from the beginning of the process; zeros for a closed loop.

    Raises:
        InputError: more requests, or later ones, than can be simulated.
    """
    if requests > MAX_REQUESTS:
        raise InputError(f"workload.requests: must be at most {MAX_REQUESTS}, found {requests}")
    return _to_ns(_seconds(process, stream(seed, "workload.arrivals"), requests))


def arrivals_before(process: traffic.Arrivals, seed: int, end_ns: int) -> Ints:
    """Return all arrivals before `end_ns`, in ns from the beginning of the process.

    Raises:
        InputError: none, or more than can be simulated.
    """
    expected = _mean_rate(process) * end_ns / NS
    n = math.ceil(expected + 6 * math.sqrt(expected)) + 16
    while True:
        if n > MAX_REQUESTS:
            raise InputError(f"workload.duration: more than {MAX_REQUESTS} requests arrive in it; make it shorter")
        arrival_ns = first_arrivals(process, seed, n)
        if arrival_ns[-1] >= end_ns:
            break
        n *= 2
    if arrival_ns[0] >= end_ns:
        raise InputError("workload.duration: no request arrives in it; make it longer, or give requests")
    return arrival_ns[: np.searchsorted(arrival_ns, end_ns)]


def think_times(think: traffic.ThinkTime, seed: int, requests: int) -> Ints:
    """Return the pause before each request of a closed loop, in ns, at most a century."""
    draws = np.ones(requests)
    if think.distribution == "exponential":
        draws = stream(seed, "workload.think_time").standard_exponential(requests)
    return np.rint(np.minimum(think.mean * draws, MAX_SECONDS * NS)).astype(np.int64)


def _to_ns(seconds: Floats) -> Ints:
    if not seconds[-1] <= MAX_SECONDS:  # true for NaN, too
        raise InputError("workload.arrivals: the last one comes after more than a century; raise the rate")
    # The inverses of integrated rates may decrease by a rounding error.
    return np.maximum.accumulate(np.rint(seconds * NS).astype(np.int64))


def _mean_rate(process: traffic.Arrivals) -> float:
    match process:
        case traffic.Bursts():
            share = process.length / process.every
            return share * process.burst_rate + (1 - share) * process.rate
        case traffic.AllAtOnce() | traffic.ClosedLoop():
            raise AssertionError("the schema gives such a process a number of requests")
    return process.rate


def _seconds(process: traffic.Arrivals, random: Generator, n: int) -> Floats:
    match process:
        case traffic.Poisson():
            return np.cumsum(random.standard_exponential(n)) / process.rate
        case traffic.Gamma():
            shape = process.burstiness if process.cv is None else process.cv**-2
            assert shape is not None
            return np.cumsum(random.standard_gamma(shape, n)) / (shape * process.rate)
        case traffic.Constant():
            return np.arange(n) / process.rate
        case traffic.Bursts():
            return _bursts(process, np.cumsum(random.standard_exponential(n)))
        case traffic.Diurnal():
            return _diurnal(process, np.cumsum(random.standard_exponential(n)))
        case traffic.AllAtOnce() | traffic.ClosedLoop():
            return np.zeros(n)


# A Poisson process with a changing rate: the inverse of the integrated rate, applied to arrivals of a process of
# rate 1 (Cinlar, Introduction to Stochastic Processes, 1975, chapter 4.7).


def _bursts(process: traffic.Bursts, unit: Floats) -> Floats:
    length, every = process.length / NS, process.every / NS
    in_burst = process.burst_rate * length
    in_period = in_burst + process.rate * (every - length)
    periods = np.floor(unit / in_period)
    rest = unit - periods * in_period
    within = np.where(rest < in_burst, rest / process.burst_rate, length + (rest - in_burst) / process.rate)
    return periods * every + within


def _diurnal(process: traffic.Diurnal, unit: Floats) -> Floats:
    """Return the arrivals of a diurnal process from those of a process of rate 1, `unit`.

    The integral of rate x (1 - amplitude cos x) over the phase x gives Kepler's equation.
    """
    period = process.period / NS
    periods, part = np.divmod(unit / (process.rate * period), 1.0)
    return (periods + solve_kepler(2 * np.pi * part, process.amplitude) / (2 * np.pi)) * period


def solve_kepler(mean: Floats, eccentricity: float) -> Floats:
    """Return x with x - eccentricity sin x = mean, for mean in [0, 2 pi] and eccentricity in [0, 1].

    On [0, pi] the left side is convex, so that Newton's method converges to the solution from above; the other half is
    symmetric. At eccentricity 1 and mean 0 the slope is 0 at the solution, and a step reduces the error only by a
    third: hence the number of steps.
    """
    half = np.minimum(mean, 2 * np.pi - mean)
    x = np.minimum(half + eccentricity, np.pi)
    for _ in range(64):
        slope = np.maximum(1 - eccentricity * np.cos(x), 1e-300)
        step = (x - eccentricity * np.sin(x) - half) / slope
        x = np.maximum(x - step, half)
        if np.max(np.abs(step), initial=0.0) < 1e-12:
            break
    return np.where(mean <= np.pi, x, 2 * np.pi - x)
