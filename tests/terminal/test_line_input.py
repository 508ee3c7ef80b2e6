from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator

import pytest

from fastovms.terminal.line_input import read_text, terminal_line


def typed(*lines: str | type[BaseException]) -> Callable[[str], str]:
    left: Iterator[str | type[BaseException]] = iter(lines)

    def read(prompt: str) -> str:
        line = next(left)
        if isinstance(line, str):
            return line
        raise line

    return read


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("  Hi ",), "Hi"),
        (('"""one',' two', 'three"""'), "one\n two\nthree"),
        (('"""one"""',), "one"),
        (('"""', "one", '"""'), "one"),
        ((EOFError,), None),
        (('"""one', EOFError), None),
        ((KeyboardInterrupt,), ""),
        (('"""one', KeyboardInterrupt), ""),
    ],
)  # fmt: skip
def test_texts(lines: tuple[str | type[BaseException], ...], text: str | None) -> None:
    assert read_text(typed(*lines), "> ") == text


def test_ctrl_c_begins_a_new_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(builtins, "input", typed("Hi", KeyboardInterrupt))
    assert terminal_line("> ") == "Hi"
    with pytest.raises(KeyboardInterrupt):
        terminal_line("> ")
    assert capsys.readouterr().out == "\n"
