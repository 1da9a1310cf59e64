"""Shared fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# The user may have calibrations of their own.
os.environ["SERVESIM_HOME"] = str(ROOT / "tests" / "no-files-of-anybody")

# Tests give the same answer every time; how long an example takes is not their business.
settings.register_profile("servesim", derandomize=True, deadline=None)
settings.load_profile("servesim")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of reference data beside the checkout, which a user's clone does not have."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("reference data (../shared) is not present")
    return folder
