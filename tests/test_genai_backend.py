"""What the server does for its users, it does with the genai backend too: the same tests again, all
but those of what the pipeline cannot do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Final

import pytest

from tests import test_end_to_end, test_end_to_end_chat, test_responses
from tests.real_server import NARROW, Server, client, start_server, stop_server

pytestmark = pytest.mark.nightly(
    but=(
        "test_an_answer_is_the_same_again_and_streamed__tests_test_end_to_end_chat[/v1]",
        "test_required_call_matches_the_schema_of_its_tool__tests_test_end_to_end_chat[/v1",
        "test_responses",
        "test_excluded",
    )
)

__all__ = ["client"]

FLAGS: Final = ("--backend", "genai", "--cache-size", "1")

NEEDS_PAGED: Final[Mapping[ModuleType, Mapping[str, str]]] = {
    test_end_to_end: {
        "test_completion_log_probabilities_cover_the_text_and_are_streamed": "logprobs above 1",
        "test_scoring_a_prompt_agrees_with_generating_it": "prompt_logprobs",
    },
    test_end_to_end_chat: {
        "test_chat_log_probabilities_cover_the_content_and_are_streamed": "logprobs above 1",
    },
    test_responses: {
        "test_chained_response_computes_only_its_new_turn": "counts of the prefix cache"
    },
}
"""With the reason."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server(*FLAGS, "--state-dir", ":memory:")
    yield server
    stop_server(server)


@pytest.fixture
def narrow_server() -> Iterator[Server]:
    """One sequence, two tokens a step."""
    server = start_server(*FLAGS, *NARROW)
    yield server
    stop_server(server)


def _again() -> Iterator[tuple[str, object]]:
    for module, excluded in NEEDS_PAGED.items():
        for name, value in vars(module).items():
            if not name.startswith("test_") or name in excluded or not inspect.isfunction(value):
                continue
            if {"server", "narrow_server", "client"} & inspect.signature(value).parameters.keys():
                yield f"{name}__{module.__name__}".replace(".", "_"), value


globals().update(_again())


def test_excluded_tests_exist():
    for module, excluded in NEEDS_PAGED.items():
        assert set(excluded) <= set(vars(module))
