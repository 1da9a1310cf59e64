"""Number of drafts proposed to each sequence: decided for each step, by the batch and earlier acceptance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from simulator.scenario.speculation import AdaptiveLength, LengthByBatchSize, Proposer

#: Of decisions for no drafts in a row, every tenth proposes one draft instead, to observe its acceptance.
_TRIES = 10

#: (running sequences, drafts, share of the sequences that have any) -> the time of such a step, in ns.
StepTime = Callable[[int, int, float], float]
#: Least count from which a rate is computed.
_KNOWN = 1.0


class LengthRule(Protocol):
    """A rule for the number of drafts; `listens` is whether it uses what `looked` and `observe` record."""

    @property
    def listens(self) -> bool: ...
    def length(self, running: int) -> int:
        """Return the number of drafts to propose after a step with this number of running sequences."""

    def looked(self, found: bool) -> None:
        """Record whether the proposer found drafts for the next step of a sequence."""

    def observe(self, depth: int, accepted: int) -> None:
        """Record that `accepted` of the `depth` drafts in a row of a sequence were accepted."""


class Fixed:
    """The same number of drafts for every step."""

    listens = False

    def __init__(self, most: int) -> None:
        self._most = most

    def length(self, running: int) -> int:
        """Return the number of drafts to propose after a step with this number of running sequences."""
        return self._most

    def looked(self, found: bool) -> None:
        """Record whether the proposer found drafts for the next step of a sequence."""

    def observe(self, depth: int, accepted: int) -> None:
        """Record that `accepted` of the `depth` drafts in a row of a sequence were accepted."""


class ByBatchSize(Fixed):
    """The number of drafts by the number of running sequences; see `LengthByBatchSize`."""

    def __init__(self, most: int, sizes: tuple[tuple[int, int], ...]) -> None:
        super().__init__(most)
        self._sizes = sizes

    def length(self, running: int) -> int:
        """Return the number of drafts to propose after a step with this number of running sequences."""
        found = self._most
        for least, drafts in self._sizes:
            if running < least:
                break
            found = min(drafts, self._most)
        return found


class Adaptive:
    """The number of drafts by acceptance; settings are those of `AdaptiveLength`.

    Counts by depth are multiplied by a factor below 1 with each step that verified drafts. A depth that was not
    verified, or not recently, has the conditional rate of the depth before it; the first has 1, so that it is tried.
    """

    listens = True

    def __init__(self, most: int, settings: AdaptiveLength, step_time: StepTime) -> None:
        self._most, self._least, self._period = most, min(settings.min, most), settings.period
        self._fading = 0.5 ** (1 / settings.half_life)
        self._step_time = step_time
        self._tried = [0.0] * most
        self._held = [0.0] * most
        self._looked = self._found = 0.0
        self._now = most
        self._steps = 0
        self._stopped = 0  # decisions in a row for no drafts
        self._fresh = False  # whether something was observed since the last step

    def length(self, running: int) -> int:
        """Return the number of drafts to propose after a step with this number of running sequences."""
        if self._fresh:
            self._fresh = False
            fading = self._fading
            self._tried = [count * fading for count in self._tried]
            self._held = [count * fading for count in self._held]
            self._looked *= fading
            self._found *= fading
        if self._steps % self._period == 0 and self._steps:
            self._now = self._best(max(running, 1))
        self._steps += 1
        return self._now

    def looked(self, found: bool) -> None:
        """Record whether the proposer found drafts for the next step of a sequence."""
        self._fresh = True
        self._looked += 1
        self._found += found

    def observe(self, depth: int, accepted: int) -> None:
        """Record that `accepted` of the `depth` drafts in a row of a sequence were accepted."""
        self._fresh = True
        for at in range(min(accepted + 1, depth)):
            self._tried[at] += 1
        for at in range(accepted):
            self._held[at] += 1

    def _best(self, running: int) -> int:
        """Return the number of drafts with the most expected tokens a second; the smallest of equals."""
        expected, cumulative, rate = 1.0, 1.0, 1.0
        share = self._found / self._looked if self._looked >= _KNOWN else 1.0
        best, most = 0, 1.0 / self._step_time(running, 0, 0.0) if not self._least else 0.0
        for drafts in range(1, self._most + 1):
            if self._tried[drafts - 1] >= _KNOWN:
                rate = self._held[drafts - 1] / self._tried[drafts - 1]
            cumulative *= rate
            expected += share * cumulative
            a_second = expected / self._step_time(running, drafts, share)
            if drafts >= self._least and a_second > most:
                best, most = drafts, a_second
        self._stopped = 0 if best else self._stopped + 1
        return 1 if not best and self._stopped % _TRIES == 0 else best


class DisabledByBatchSize:
    """No drafts with `limit` running sequences or more; else the number by `rule`."""

    def __init__(self, rule: LengthRule, limit: int) -> None:
        self._rule, self._limit = rule, limit
        self.listens = rule.listens

    def length(self, running: int) -> int:
        """Return the number of drafts to propose after a step with this number of running sequences."""
        return 0 if running >= self._limit else self._rule.length(running)

    def looked(self, found: bool) -> None:
        """Record whether the proposer found drafts for the next step of a sequence."""
        self._rule.looked(found)

    def observe(self, depth: int, accepted: int) -> None:
        """Record that `accepted` of the `depth` drafts in a row of a sequence were accepted."""
        self._rule.observe(depth, accepted)


def build_length(proposer: Proposer, step_time: StepTime) -> LengthRule:
    """Build the rule that the scenario names, for one replica."""
    most, settings = proposer.num_speculative_tokens, proposer.length
    rule: LengthRule
    if isinstance(settings, LengthByBatchSize):
        rule = ByBatchSize(most, settings.sizes)
    elif isinstance(settings, AdaptiveLength):
        rule = Adaptive(most, settings, step_time)
    else:
        rule = Fixed(most)
    return rule if proposer.disable_by_batch_size is None else DisabledByBatchSize(rule, proposer.disable_by_batch_size)
