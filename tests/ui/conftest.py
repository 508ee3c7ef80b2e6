"""A browser, and servers with the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ui.browser import UiServer, browser, ui_server

__all__ = ["browser", "quick_server", "slow_server"]


@pytest.fixture(scope="session")
def quick_server() -> Iterator[UiServer]:
    """Answers at once."""
    with ui_server() as server:
        yield server


@pytest.fixture(scope="session")
def slow_server() -> Iterator[UiServer]:
    """Takes a while for each token, so that something can be done in the middle of an answer. An
    answer that repeats an earlier one is not drafted from that."""
    with ui_server("--no-enable-prompt-lookup", step_seconds=0.05) as server:
        yield server
