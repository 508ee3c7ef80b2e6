"""Servers that embed get the same texts in turn."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench.embedding_servers import FIRST_SIDE, EmbeddingSide, read_arguments, run
from fastovms.errors import RequestFailed

URL = "http://127.0.0.1:1"


class FakeServer(EmbeddingSide):
    """Answers without a network, and notes what it was asked."""

    def __init__(self, asked: list[tuple[str, dict]], name: str, model: str | None = None) -> None:
        super().__init__(read_arguments([URL]).sides[FIRST_SIDE], model)
        self._asked, self._name = asked, name

    async def _ask(self, method: str, path: str, body: bytes = b"") -> object:
        await asyncio.sleep(0)
        if path == "/models":
            return {"data": [{"id": f"model-of-{self._name}"}]}
        given = json.loads(body)
        self._asked.append((self._name, given))
        return {"usage": {"prompt_tokens": 3 * len(given["input"])}}


def test_sides_take_turns_with_the_same_texts(capsys) -> None:
    options = read_arguments([URL, "--documents", "5", "--per-request", "2", "--rounds", "2"])
    asked: list[tuple[str, dict]] = []
    sides = {FIRST_SIDE: FakeServer(asked, "a"), "other": FakeServer(asked, "b", "given")}
    asyncio.run(run(options, sides))
    measured = asked[2:]  # each is warmed up by one request
    assert [name for name, _ in measured] == [*"aaabbb"] * 2
    texts = [body["input"] for _, body in measured]
    assert texts[:3] == texts[3:6] != texts[6:9] == texts[9:]
    assert [len(each) for each in texts[:3]] == [2, 2, 1]
    assert {body["model"] for _, body in measured} == {"model-of-a", "given"}
    assert "|  other |" in capsys.readouterr().out
    assert [len(side.rates) for side in sides.values()] == [2, 2]
    assert sides["other"].num_tokens == 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "URL"),
        (["localhost"], "URL must be http://HOST:PORT"),
        ([URL, "--side", "a", "ftp://b"], "--side must be http"),
        ([URL, "--side", FIRST_SIDE, URL], "the name server is taken"),
        ([URL, "--documents", "0"], "--documents"),
    ],
)
def test_invalid_arguments_are_refused_with_a_message(
    capsys, arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        read_arguments(arguments)
    assert message in capsys.readouterr().err


def test_unreachable_server_is_an_error() -> None:
    side = read_arguments([URL]).sides[FIRST_SIDE]
    with pytest.raises(RequestFailed):
        asyncio.run(run(read_arguments([URL]), {FIRST_SIDE: EmbeddingSide(side, None)}))
