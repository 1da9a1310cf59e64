"""Errors of the package are mistakes of the user's, and cost nothing to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cost_models
from cost_models import CostModelError
from simulator.errors import InputError


def test_errors_of_cost_models_are_input_errors() -> None:
    assert issubclass(CostModelError, InputError)
    assert cost_models.InputError is InputError


def test_errors_do_not_import_what_prices_steps() -> None:
    code = "import sys, simulator.errors; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_all_names_are_there() -> None:
    for name in cost_models.__all__:
        assert getattr(cost_models, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cost_models.nothing  # noqa: B018
