"""Speculative decoding in a scenario: the proposer, the number of drafts, their acceptance and its rule.

Names are vLLM's where it has one (`speculative_config`). A step verifies `num_speculative_tokens` drafts of a sequence,
beside the token that it would compute without drafts.
"""

from __future__ import annotations

import math
from dataclasses import field
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from simulator.scenario.acceptance import Acceptance, ReplayAcceptance, TableAcceptance
from simulator.scenario.field_types import Tagged
from simulator.scenario.numbers import Fraction, StepDuration, TokenDuration
from simulator.scenario.quantities import Range
from simulator.scenario.setting import setting

#: Limit above the drafts of any published method for a sequence in a step; an event's number of tokens fits a byte.
MOST_DRAFTS = 254
_Drafts = Annotated[int, Range(min=1, max=MOST_DRAFTS)]
_Length = Annotated[int, Range(min=0, max=MOST_DRAFTS)]

# --- number of drafts -----------------------------------------------------------------------------------------------


@setting()
class FixedLength:
    """Always `num_speculative_tokens`."""

    TAG_KEY: ClassVar[str] = "rule"
    TAG: ClassVar[str] = "fixed"


@setting()
class LengthByBatchSize:
    """Number of drafts by batch size: `sizes` has pairs (least running sequences, drafts); below the first, all."""

    TAG_KEY: ClassVar[str] = "rule"
    TAG: ClassVar[str] = "by_batch_size"
    sizes: tuple[tuple[Annotated[int, Range(min=1, max=10**6)], _Length], ...]

    def __post_init__(self) -> None:
        if not self.sizes:
            raise ValueError("sizes: needs at least one pair")
        for (earlier, _), (later, _) in pairwise(self.sizes):
            if later <= earlier:
                raise ValueError(f"sizes: must rise, but {later} follows {earlier}")


@setting()
class AdaptiveLength:
    """Number of drafts with the most expected tokens a second, chosen every `period` steps by the observed acceptance.

    The weight of a step's acceptance halves after `half_life` steps. The number is at least `min`; if that is 0,
    drafting can stop, and every tenth decision then proposes one draft to observe its acceptance. The time of a step
    with each number is the cost model's, for the current batch (the goodput of SmartSpec, arXiv 2406.14066).
    """

    TAG_KEY: ClassVar[str] = "rule"
    TAG: ClassVar[str] = "adaptive"
    min: _Length = 0
    period: Annotated[int, Range(min=1, max=10**6)] = 16
    half_life: Annotated[int, Range(min=1, max=10**6)] = 64


Length = Annotated[FixedLength | LengthByBatchSize | AdaptiveLength, Tagged("rule", "fixed")]

# --- verification ---------------------------------------------------------------------------------------------------


@setting()
class Verification:
    """The rule by which the target model accepts drafts.

    The rule does not change the simulated acceptance: the given acceptance rates must be those of the rule.

    `rejection`: speculative sampling, which keeps the target's output distribution; also greedy decoding (temperature
    0) with drafts that must match. `argmax`: at a temperature above 0, a draft is accepted if it is the most probable
    token of both models. `typical`: Medusa's typical acceptance.

    The latter two change the output distribution. The difference from the target's is reported as total variation: for
    the next-token probabilities `target` and `draft`, examples of the workload's, or for a reference pair.
    """

    FROM_SCALAR: ClassVar[str] = "rule"
    rule: Literal["rejection", "argmax", "typical"] = "rejection"
    target: tuple[Fraction, ...] = ()
    draft: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        for name in ("target", "draft"):
            values = getattr(self, name)
            if values and not math.isclose(sum(values), 1, abs_tol=1e-6):
                raise ValueError(f"{name}: probabilities must add up to 1, not {sum(values):g}")
        if len(self.target) != len(self.draft):
            raise ValueError("draft: must have as many probabilities as target")
        if self.target and self.rule == "rejection":
            raise ValueError("target: rule rejection keeps any target's law; only argmax and typical use target")


# --- proposers ------------------------------------------------------------------------------------------------------


@setting(kw_only=True)
class Proposer:
    """Common keys of all methods.

    `disable_by_batch_size`: with this number of running sequences or more, nothing is proposed (as in vLLM V0).
    `proposal: overlapped`: drafts are made while the target verifies the previous ones, so that a step takes the longer
    of both times; acceptance must then be that of such a method. `pass_time` is the time of a pass of the drafter, its
    launch included, instead of the time of its model. The host's `draft_step`, the part of a step with drafts that is
    the same for every drafter, is added to it.
    """

    #: Reason why drafts cannot be made while the target verifies, unless a measured time is given.
    _OVERLAPS_NOT: ClassVar[str] = (
        "drafts are made from hidden states that verification produces; take serial, or give the pass_time that was "
        "measured beside the target"
    )
    num_speculative_tokens: _Drafts
    acceptance: Acceptance = field(default_factory=TableAcceptance)
    length: Length = FixedLength()
    disable_by_batch_size: Annotated[int, Range(min=1, max=10**6)] | None = None
    verification: Verification = Verification()
    proposal: Literal["serial", "overlapped"] = "serial"
    pass_time: StepDuration | None = None

    def __post_init__(self) -> None:
        if self.proposal == "overlapped" and not self._may_overlap:
            raise ValueError(f"proposal: cannot be overlapped: {self._OVERLAPS_NOT}")
        most = self.num_speculative_tokens
        if isinstance(self.length, LengthByBatchSize):
            drafts = max(drafts for _, drafts in self.length.sizes)
        else:
            drafts = self.length.min if isinstance(self.length, AdaptiveLength) else 0
        if drafts > most:
            raise ValueError(f"length: asks for {drafts} drafts, more than num_speculative_tokens ({most})")

    @property
    def _may_overlap(self) -> bool:
        """Whether verifying and proposing can overlap: on separate GPUs, or by a measured `pass_time`."""
        return self.pass_time is not None

    @property
    def depth(self) -> int:
        """The most drafts that one step can accept."""
        return self.num_speculative_tokens

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of drafts verified at each depth."""
        return (1,) * self.num_speculative_tokens


@setting(kw_only=True)
class _TreeProposer(Proposer):
    """A proposer of trees: `tree` has the number of drafts at each depth, `num_speculative_tokens` in all. Empty: a
    chain."""

    tree: tuple[_Drafts, ...] = ()

    def __post_init__(self) -> None:
        Proposer.__post_init__(self)
        if self.tree and sum(self.tree) != self.num_speculative_tokens:
            raise ValueError(f"tree: has {sum(self.tree)} drafts, not num_speculative_tokens of them")
        if self.tree and self.length != FixedLength():
            raise ValueError("length: a tree is verified whole, which needs rule fixed")

    @property
    def depth(self) -> int:
        return len(self.levels)

    @property
    def levels(self) -> tuple[int, ...]:
        return self.tree or (1,) * self.num_speculative_tokens


@setting(kw_only=True)
class DraftModel(Proposer):
    """A smaller model, with KV of its own in the same blocks.

    It is on the target's GPUs, unless `gpu` gives it `tensor_parallel` GPUs of its own for each replica.
    """

    TAG_KEY: ClassVar[str] = "method"
    TAG: ClassVar[str] = "draft_model"
    _OVERLAPS_NOT: ClassVar[str] = (
        "two models on one GPU share its bandwidth; take serial, give the draft model a gpu of its own, or the "
        "pass_time that was measured beside the target"
    )
    model: str
    weights: Literal["auto", "bf16", "fp16", "fp8", "int8"] = "auto"
    gpu: str | None = None
    tensor_parallel: Annotated[int, Range(min=1, max=64)] | None = None

    @property
    def _may_overlap(self) -> bool:
        return self.gpu is not None or self.pass_time is not None


@setting(kw_only=True)
class Ngram(Proposer):
    """Prompt lookup: the drafts are the tokens after an earlier occurrence of the last tokens. It takes CPU time.
    `match_rate`: the share of steps with such an occurrence; in others nothing is proposed. Its default is that of the
    table, or 1. `lookup` is the time for each sequence.
    """

    TAG_KEY: ClassVar[str] = "method"
    TAG: ClassVar[str] = "ngram"
    _OVERLAPS_NOT: ClassVar[str] = "a lookup needs the tokens that verification accepts; take serial"
    match_rate: Fraction | None = None
    lookup: TokenDuration | None = None

    def __post_init__(self) -> None:
        Proposer.__post_init__(self)
        if self.pass_time is not None:
            raise ValueError("pass_time: there is no pass of a drafter; set lookup")
        if self.match_rate is not None and isinstance(self.acceptance, ReplayAcceptance):
            raise ValueError("match_rate: has no effect on recorded counts; leave steps without drafts out of the file")


@setting(kw_only=True)
class Eagle(_TreeProposer):
    """EAGLE: one layer of the target's shape on its hidden state, with the target's LM head."""

    TAG_KEY: ClassVar[str] = "method"
    TAG: ClassVar[str] = "eagle"


@setting(kw_only=True)
class Eagle3(_TreeProposer):
    """EAGLE-3: one layer on hidden states of three of the target's, with an LM head of `draft_vocab` tokens."""

    TAG_KEY: ClassVar[str] = "method"
    TAG: ClassVar[str] = "eagle3"
    draft_vocab: Annotated[int, Range(min=1, max=10**7)] | None = None

    def __post_init__(self) -> None:
        _TreeProposer.__post_init__(self)
        if self.draft_vocab is not None and self.pass_time is not None:
            raise ValueError("draft_vocab: has no effect beside pass_time, which sets the time of a pass")


@setting(kw_only=True)
class Mtp(Proposer):
    """Multi-token prediction: a layer of the target that was trained for it, and its LM head, once for each draft."""

    TAG_KEY: ClassVar[str] = "method"
    TAG: ClassVar[str] = "mtp"


@setting(kw_only=True)
class Medusa(_TreeProposer):
    """Medusa: a head for each depth, all in one pass on the target's last hidden state."""

    TAG_KEY: ClassVar[str] = "method"
    TAG: ClassVar[str] = "medusa"


Speculation = Annotated[DraftModel | Ngram | Eagle | Eagle3 | Mtp | Medusa, Tagged("method")]
