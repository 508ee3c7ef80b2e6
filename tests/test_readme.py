"""What the README says about chats."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMATS
from tests.real_server import start_server, stop_server

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_every_parser_is_in_the_table():
    table = README.partition("| name | models | a call | a thought |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row[:40])]
    assert sorted(named) == sorted({*TOOL_FORMATS, *REASONING_FORMATS})


@pytest.mark.parametrize("backend", ["paged", "genai"])
def test_the_examples_run(backend: str, capsys: pytest.CaptureFixture[str]):
    server = start_server("--backend", backend)
    try:
        for example in EXAMPLES:
            code = example.replace("http://127.0.0.1:8000", server.url)
            exec(compile(code, "README.md", "exec"), {})
            shown = capsys.readouterr().out
            assert shown.strip()
            for expected in re.findall(r"^ *print.*  # (.+?)(?:\.\.\.)?$", example, re.MULTILINE):
                assert expected in shown
    finally:
        stop_server(server)
