"""Fixtures of the tests of policies."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[True, False], ids=["by totals", "one by one"])
def totals(request: pytest.FixtureRequest) -> bool:
    """Return whether the view keeps totals of the decodes."""
    return bool(request.param)
