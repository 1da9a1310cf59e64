"""Function calls in worker processes."""

from __future__ import annotations

import os
import signal

import pytest
from joblib.externals.loky import get_reusable_executor

from simulator.common.parallel import in_processes, in_worker


def sigint_is_blocked(_: int) -> tuple[int, bool]:
    """Return the process, and whether its main thread blocks SIGINT."""
    return os.getpid(), signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="the platform has no signal masks")
def test_workers_leave_ctrl_c_to_the_main_process() -> None:
    """A worker that received SIGINT would print a traceback, above all while it starts."""
    get_reusable_executor(max_workers=2).shutdown(wait=True)  # workers of other tests are not reused
    found = list(in_processes(sigint_is_blocked, [(number,) for number in range(4)], 2))
    assert {process for process, _ in found}.isdisjoint({os.getpid()})
    assert all(blocked for _, blocked in found)
    assert not sigint_is_blocked(0)[1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_have_the_order_of_the_tasks(jobs: int) -> None:
    assert list(in_processes(pow, [(number, 2) for number in range(5)], jobs)) == [0, 1, 4, 9, 16]


def test_a_worker_starts_no_others() -> None:
    found = list(in_processes(_nested, [(1,), (2,)], 2))
    assert [same for _, same, _ in found] == [True, True]
    assert [values for *_, values in found] == [[1, 1], [2, 2]]
    assert os.getpid() not in {process for process, *_ in found}
    assert not in_worker()


def _nested(value: int) -> tuple[int, bool, list[int]]:
    """Return the process, whether calls made from here are made in it, and their results."""
    processes = list(in_processes(_identity, [(value,), (value,)], 2))
    return os.getpid(), {process for process, _ in processes} == {os.getpid()}, [each for _, each in processes]


def _identity(value: int) -> tuple[int, int]:
    return os.getpid(), value
