"""A pipeline that shows which texts its grammars allow."""

from __future__ import annotations

import pytest

from tests.backends.xgrammar.repeating_pipeline import RepeatingPipeline


@pytest.fixture(scope="session")
def pipeline() -> RepeatingPipeline:
    return RepeatingPipeline()
