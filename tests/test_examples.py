"""Every program of `examples/` runs as it stands and prints what it should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir
from tests.paths import ROOT
from tests.real_server import Server, start_server, stop_server

EXAMPLES = ROOT / "examples"

PRINTED = {
    "stream": r" there was .+\n\[60 tokens\]\n",
    "agent": r"get_weather\({'city': 'Paris'}\) -> {.*}\nIt is 18 degrees and sunny in Paris\.\n",
    "messages_agent": r"get_weather\('Paris'\)\nIt is 18 degrees and sunny in Paris\.\n",
    "ollama_agent": r"get_weather\('Paris'\)\nIt is 18 degrees and sunny in Paris\.\n",
    "structured": r"Anna, 31, from Rome\n",
    "conversation": r"(.*\n)*.*12.*\n(.*\n)*.*Alice.*\nThe conversation has 6 items\.\n",
    "background": r"started, (queued|in_progress)\nleft after event \d+\n"
    r"completed, whole: True\nOnce upon a time(.|\n)+",
    "batch": r"completed: 20 of 20, \d+ tokens\nthe first story: 0 friends(.|\n)*",
    "hundred_prompts": r"100 answers, (9\d|100) of them right\n",
    "retrieval": r"(The|Visitors|Bread) .+\n(The|Visitors|Bread) .+\n\n(.|\n)+",
}
"""What each program prints, as a regular expression of the whole."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a directory of its own, in which it keeps files, and with models that embed and
    rank."""
    models = {"demo_model": DEMO_MODEL, "bge": encoder_dir(), "rank": encoder_dir(1)}
    flags = [flag for name, path in models.items() for flag in ("--model", f"{name}={path}")]
    server = start_server(*flags, "--state-dir", str(tmp_path_factory.mktemp("state")))
    yield server
    stop_server(server)


def test_every_example_is_run():
    """All but the one of LangChain, which the tests do not install."""
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert programs == {*PRINTED, "langchain_agent"}


@pytest.mark.parametrize(
    ("name", "page"), [("langchain_agent", "clients"), ("retrieval", "embeddings")]
)
def test_example_on_a_page_is_the_program(name: str, page: str):
    program = (EXAMPLES / f"{name}.py").read_text()
    assert f"```py\n{program}```\n" in (ROOT / f"docs/{page}.md").read_text()


@pytest.mark.nightly(
    but=(
        "[agent]",
        "[structured]",
        "[batch]",
    )
)
@pytest.mark.parametrize("name", PRINTED)
def test_example_prints_its_expected_output(name: str, server: Server):
    ran = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        env={
            **os.environ,
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "ANTHROPIC_BASE_URL": server.url,
            "OLLAMA_HOST": server.url,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stderr == ""
    assert ran.returncode == 0
    assert re.fullmatch(PRINTED[name], ran.stdout), ran.stdout
