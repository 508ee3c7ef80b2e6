from __future__ import annotations

import pytest

from fastovms.app.catalog import ModelFinder
from fastovms.cli.chat import CHAT_FLAGS, TERMINAL
from fastovms.cli.main import main
from fastovms.parts.client import terminal
from fastovms.parts.client.config import TerminalConfig


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def chat(*given: object, in_colour: bool) -> int:
        calls.append(given)
        return 0

    monkeypatch.setattr(terminal, "chat", chat)
    return calls


def test_chat_arguments_become_the_terminal_config(calls: list[tuple[object, ...]]) -> None:
    assert main(["chat"]) == 0
    main(["chat", "--system", "Be brief.", "--model", "m", "http://a"])
    assert calls == [
        (None, TerminalConfig()),
        ("http://a", TerminalConfig(model="m", system="Be brief.")),
    ]


def test_model_of_a_hub_is_downloaded_before_its_server_starts(
    calls: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    located: list[str] = []
    monkeypatch.setattr(ModelFinder, "locate", lambda finder, place: located.append(place))
    for place in ("http://a", "org/name/file.gguf"):
        main(["chat", place])
    assert located == ["org/name/file.gguf"]
    assert [place for place, _ in calls] == ["http://a", "org/name/file.gguf"]


def test_every_field_of_the_terminal_has_a_flag() -> None:
    assert {flag.field for flag in CHAT_FLAGS} == set(vars(TERMINAL).values())
