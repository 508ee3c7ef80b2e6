from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.terminal.dialogue import Dialogue, WrongInput
from fastovms.terminal.slash_commands import COMMANDS, Leave, run_command


@pytest.fixture
def dialogue() -> Dialogue:
    dialogue = Dialogue("m")
    dialogue.messages.append({"role": "user", "content": "Hi"})
    return dialogue


def test_help_has_every_command(dialogue: Dialogue) -> None:
    told = run_command(dialogue, "/help")
    assert all(f"/{name}" in told for name in COMMANDS)
    assert "Ctrl-C" in told


def test_settings(dialogue: Dialogue) -> None:
    assert run_command(dialogue, "/system Be brief.") == "system: Be brief."
    assert dialogue.system == "Be brief."
    assert run_command(dialogue, "/system") == "there is no system message"
    assert "server's default" in run_command(dialogue, "/set")
    assert run_command(dialogue, "/set top_k 5") == "top_k = 5"
    assert run_command(dialogue, "/model n") == "model: n"
    assert run_command(dialogue, "/model") == "model: n"
    assert run_command(dialogue, "/clear") == "all messages are forgotten"
    assert dialogue.messages == []


def test_files(dialogue: Dialogue, tmp_path: Path) -> None:
    kept, tools = tmp_path / "chat.json", tmp_path / "tools.json"
    assert run_command(dialogue, f"/save {kept}") == f"saved in {kept}"
    other = Dialogue("m")
    assert run_command(other, f"/load {kept}") == "1 messages"
    assert other.messages == dialogue.messages
    tools.write_text('[{"type": "function"}]')
    assert run_command(dialogue, f"/tools {tools}") == "1 tools"
    assert dialogue.tools == [{"type": "function"}]
    assert run_command(dialogue, "/tools") == "0 tools"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/dance", "there is no command /dance: see /help"),
        ("/", "there is no command /: see /help"),
        ("/save", "it needs the name of a file"),
        ("/save {0}", "cannot write {0}: Is a directory"),
        ("/load {0}/none", "cannot read {0}/none: No such file"),
        ("/load {0}/bytes", "cannot read {0}/bytes: it is no UTF-8"),
        ("/tools {0}/object", "must have a JSON list"),
        ("/tools {0}/half", "must have a JSON list"),
        ("/save ~nosuchuser/x", "there is no home directory for ~nosuchuser/x"),
        ("/load ~nosuchuser/x", "there is no home directory for ~nosuchuser/x"),
        ("/save {0}/\0", "cannot write .*: embedded null byte"),
        ("/load {0}/\0", "cannot read .*: embedded null byte"),
        ("/load ~a\0b", "there is no home directory"),
        ("/set heat 1", "no option"),
    ],
)
def test_what_is_refused(dialogue: Dialogue, tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "object").write_text("{}")
    (tmp_path / "half").write_text('["\\ud800"]')
    before = dialogue.to_json()
    with pytest.raises(WrongInput, match=words.format(tmp_path)):
        run_command(dialogue, line.format(tmp_path))
    assert dialogue.to_json() == before


def test_what_utf_8_lacks_cannot_be_kept(dialogue: Dialogue, tmp_path: Path) -> None:
    dialogue.system = "\udce9"  # as a byte of Latin-1 on the command line becomes
    kept = tmp_path / "chat.json"
    kept.write_text("before")
    with pytest.raises(WrongInput, match=r"cannot write .*surrogates not allowed"):
        run_command(dialogue, f"/save {kept}")
    assert kept.read_text() == "before"


@pytest.mark.parametrize("line", ["/exit", "/bye"])
def test_the_end(dialogue: Dialogue, line: str) -> None:
    with pytest.raises(Leave):
        run_command(dialogue, line)
