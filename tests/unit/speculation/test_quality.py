"""Reported effect of a rule of verification on the output."""

from __future__ import annotations

import pytest

from simulator.scenario.speculation import Verification
from simulator.speculation.quality import quality_of, reference_pair
from simulator.speculation.sampling import acceptance_probability


def test_speculative_sampling_is_exact_whatever_the_distributions() -> None:
    quality = quality_of(Verification())
    assert (quality.kind, quality.total_variation) == ("exact", 0.0)
    assert "keeps the target's law" in quality.basis
    with pytest.raises(ValueError, match="only argmax and typical use target"):
        Verification("rejection", (0.5, 0.5), (0.9, 0.1))


def test_argmax_on_the_distributions_of_a_scenario() -> None:
    quality = quality_of(Verification("argmax", (0.5, 0.3, 0.2), (0.4, 0.35, 0.25)))
    assert quality.kind == "approximate"
    assert quality.total_variation == pytest.approx(0.5)
    assert quality.basis == "one token of the scenario's target and draft"


def test_a_rule_is_approximate_even_where_it_does_no_harm() -> None:
    """The two disagree on the most probable token, so that the target draws."""
    quality = quality_of(Verification("argmax", (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)))
    assert (quality.kind, quality.total_variation) == ("approximate", 0.0)


def test_typical_acceptance_on_the_distributions_of_a_scenario() -> None:
    """The rule accepts drafted tokens 0 and 1, and the target draws the others."""
    quality = quality_of(Verification("typical", (0.6, 0.3, 0.06, 0.04), (0.5, 0.1, 0.2, 0.2)))
    law = (0.5 + 0.4 * 0.6, 0.1 + 0.4 * 0.3, 0.4 * 0.06, 0.4 * 0.04)
    assert quality.total_variation == pytest.approx(law[0] - 0.6)


def test_the_reference_pair_is_what_its_basis_says() -> None:
    target, draft = reference_pair()
    assert target.sum() == pytest.approx(1)
    assert draft.sum() == pytest.approx(1)
    assert target.argmax() == draft.argmax() == 0
    assert target[0] / target[9] == pytest.approx(100)
    assert acceptance_probability(target, draft) == pytest.approx(0.7)
    assert draft.min() > 0


def test_quality_without_distributions_is_that_of_the_reference_pair() -> None:
    argmax, typical = (quality_of(Verification(rule)) for rule in ("argmax", "typical"))
    assert argmax.total_variation == pytest.approx(1 - reference_pair()[0].max())
    assert 0 < typical.total_variation < argmax.total_variation
    assert "reference pair" in argmax.basis
    assert "0.7" in argmax.basis
    assert "not measured" in argmax.basis
