"""A real server with two keys: neither learns from `cached_tokens` what the other has asked."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real_server import DEADLINE, NAME, Server, start_server, stop_server

KEYS = ("key-of-one", "key-of-the-other")


def long_text(subject: str) -> str:
    """Returns a text of some blocks that no other test sends."""
    return f"{subject}: " + "the fox and the owl walked through the forest and talked. " * 9


def of_usage(name: str) -> Callable[[Any], int]:
    """Returns a reader of OpenAI's `usage`, whose details of the input have this name."""
    return lambda answer: int(answer["usage"][name]["cached_tokens"])


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 2}


DOORS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[[Any], int]]] = {
    "/v1/completions": (
        lambda text: {"prompt": text, "max_tokens": 2},
        of_usage("prompt_tokens_details"),
    ),
    "/v1/chat/completions": (chat, of_usage("prompt_tokens_details")),
    "/v3/chat/completions": (chat, of_usage("prompt_tokens_details")),
    "/v1/responses": (
        lambda text: {"input": text, "max_output_tokens": 2},
        of_usage("input_tokens_details"),
    ),
    "/v1/messages": (chat, lambda answer: int(answer["usage"]["cache_read_input_tokens"])),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("state")
    server = start(folder)
    yield server
    stop_server(server)


def start(folder: Path) -> Server:
    flags = [flag for key in KEYS for flag in ("--api-key", key)]
    return start_server("--state-dir", str(folder), *flags)


def ask(server: Server, path: str, key: str, text: str) -> int:
    """Returns the cached tokens that the answer names."""
    make, cached = DOORS[path]
    body = {"model": NAME, **make(text)}
    return cached(server.send("POST", path, body, Authorization=f"Bearer {key}").json)


@pytest.mark.parametrize("path", DOORS)
def test_cached_tokens_of_another_key_are_not_counted(server: Server, path: str) -> None:
    text = long_text(path)
    one, other = KEYS
    assert ask(server, path, one, text) == 0
    assert ask(server, path, one, text) > 0
    assert ask(server, path, other, text) == 0
    assert ask(server, path, other, text) > 0


@pytest.mark.nightly
def test_cached_tokens_of_another_key_are_not_counted_after_a_restart(tmp_path: Path) -> None:
    one, other = KEYS
    path, texts = "/v1/completions", [long_text(subject) * 3 for subject in ("first", "second")]
    for is_first in (True, False):
        server = start(tmp_path)
        try:
            if is_first:
                assert [ask(server, path, one, text) for text in texts] == [0, 0]
            else:
                assert ask(server, path, other, texts[0]) == 0
                assert ask(server, path, one, texts[1]) > 0
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(DEADLINE)
        finally:
            stop_server(server)
