from __future__ import annotations

import orjson
import pytest

from fastovms.terminal.dialogue import Dialogue, WrongInput


def test_bodies() -> None:
    dialogue = Dialogue("m", "Be brief.")
    dialogue.messages.append({"role": "user", "content": "Hi"})
    dialogue.set_option("temperature", "0.5")
    dialogue.set_option("max_tokens", "9")
    dialogue.tools = [{"type": "function"}]
    assert dialogue.body() == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
        ],
        "stream": True,
        "tools": [{"type": "function"}],
        "temperature": 0.5,
        "max_tokens": 9,
    }
    dialogue.set_option("temperature", "")
    assert "temperature" not in dialogue.body()
    assert Dialogue("m").body() == {"model": "m", "messages": [], "stream": True}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("heat", "1", "there is no option 'heat', only temperature, top_p"),
        ("temperature", "hot", "temperature must be a finite number, not 'hot'"),
        ("temperature", "nan", "temperature must be a finite number, not 'nan'"),
        ("top_p", "-inf", "top_p must be a finite number, not '-inf'"),
        ("seed", "1.5", "seed must be an integer of 64 bits, not '1.5'"),
        ("seed", str(2**64), "seed must be an integer of 64 bits, not '18446744073709551616'"),
        ("top_k", str(-(2**63) - 1), "top_k must be an integer of 64 bits"),
    ],
)
def test_wrong_options(name: str, value: str, words: str) -> None:
    with pytest.raises(WrongInput, match=words):
        Dialogue("m").set_option(name, value)


@pytest.mark.parametrize("value", [2**64 - 1, -(2**63)])
def test_integers_of_64_bits(value: int) -> None:
    dialogue = Dialogue("m")
    dialogue.set_option("seed", str(value))
    assert dialogue.options == {"seed": value}
    orjson.dumps(dialogue.body())


def test_a_chat_can_be_kept() -> None:
    dialogue = Dialogue("m", "Be brief.")
    dialogue.messages.append({"role": "user", "content": "Grüße"})
    dialogue.set_option("seed", "3")
    other = Dialogue("n")
    other.restore(dialogue.to_json())
    assert other.body() == {**dialogue.body(), "model": "n"}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"system": 5, "tools": [], "options": {}, "messages": []}',
        '{"system": null, "tools": [], "options": {}, "messages": ["a"]}',
        '{"system": "\\ud800", "tools": [], "options": {}, "messages": []}',
        '{"system": null, "tools": [], "options": {"top_p": NaN}, "messages": []}',
        "[" * 100_000,
    ],
)
def test_what_is_no_chat(text: str) -> None:
    dialogue = Dialogue("m", "Be brief.")
    with pytest.raises(WrongInput, match="no chat that was saved"):
        dialogue.restore(text)
    assert dialogue.system == "Be brief."
