"""One measurement: warm-up, flushes, repeats, the median, and a host that is too slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from cost_models.profiling.timing import KernelError, Sample, measure


class Script:
    """A timer that answers from a list, the last answer for ever; it and the kernel write down what happens."""

    def __init__(self, answers: Sequence[Sample]) -> None:
        self.answers = list(answers)
        self.log: list[str] = []

    def now(self) -> float:
        return 0.0

    def flush(self) -> None:
        self.log.append("flush")

    def time(self, call: Callable[[], object]) -> Sample:
        call()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def kernel(self) -> None:
        self.log.append("call")


def samples(*times: float) -> list[Sample]:
    return [Sample(us, late=False) for us in times]


def test_the_median_of_nine_after_two_untimed_calls() -> None:
    timer = Script(samples(90, 10, 11, 12, 13, 14, 15, 16, 17))
    assert measure(timer.kernel, timer) == 14
    assert timer.log == ["call", "call", *["flush", "call"] * 9]


def test_long_calls_are_repeated_less() -> None:
    timer = Script(samples(9_000))
    assert measure(timer.kernel, timer) == 9_000
    assert timer.log.count("flush") == 3
    timer = Script(samples(5_000))
    measure(timer.kernel, timer)
    assert timer.log.count("flush") == 4


def test_a_late_repeat_is_not_counted_and_doubles_the_flushes() -> None:
    timer = Script([Sample(500, late=True), *samples(3, 1, 2, 4, 5, 6, 7, 8, 9)])
    assert measure(timer.kernel, timer) == 5
    assert timer.log == ["call", "call", "flush", "call", *["flush", "flush", "call"] * 9]


def test_a_host_that_never_keeps_up() -> None:
    timer = Script([Sample(500, late=True)])
    with pytest.raises(KernelError, match="the host launches it more slowly than the GPU runs it"):
        measure(timer.kernel, timer)
    assert timer.log.count("flush") == 1 + 2 + 4 + 8 + 16
