"""Tests that the commands and snippets of the user pages run, or are in a table with the reason why
they cannot run here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from docs import generate
from fastovms.cli.foreign_flags import ALIASES
from fastovms.cli.foreign_tables import FOREIGN_FLAGS, REFUSED_FLAGS, VLLM_NAMES
from fastovms.cli.main import command_parser, parse
from fastovms.parts.ovms.options import OVMS_OPTIONS
from tests.docs.user_pages import (
    Block,
    blocks_of,
    commands_of,
    prose_of,
    simple_commands,
    user_pages,
)
from tests.real_server import Server, start_server, stop_server

PAGES: Final = user_pages()
BLOCKS: Final = [block for page in PAGES for block in blocks_of(page)]
MAX_WORDS: Final = 29_500
FIRST_SCREEN: Final = 25
"""The maximum number of lines of a page."""

SHELLS: Final = ("bash", "sh")

NOT_RUN: Final = {
    "pip": "needs a package index",
    "python3": "makes an environment, which needs a package index",
    "npm": "needs a package index",
    "npx": "needs a package index",
    "optimum-cli": "needs torch and a hub",
    "apt-get": "changes the system",
    "usermod": "changes the system",
    "ufw": "changes the system",
    "install": "changes the system",
    "systemctl": "needs systemd",
    "journalctl": "needs systemd",
    "systemd-analyze": "needs systemd",
    "nginx": "tests/deploy/test_reverse_proxies.py runs it",
    "haproxy": "tests/deploy/test_reverse_proxies.py runs it",
    "caddy": "tests/deploy/test_reverse_proxies.py runs it",
    "docker": "needs a daemon and a registry",
    "podman": "needs a registry",
    "kubectl": "needs a cluster; tests/deploy/test_kubernetes.py checks the manifests",
    "cp": "copies files of the operator",
    "cat": "shows or makes files of the operator",
    "git": "needs a repository of the reader's",
    "build.sh": "builds for minutes, as root",
    "ray": "tests/deploy/test_ray.py runs a cluster, with the extra ray",
    "serve": "tests/deploy/test_ray.py runs a cluster, with the extra ray",
    "prometheus": "tests/deploy/test_observability.py runs it",
    "promtool": "tests/deploy/test_observability.py runs it",
    "createdb": "needs PostgreSQL; tests/state runs one",
    "ollama": "a program of others",
    "codex": "a program of others; tests/clients/test_agent_traffic.py sends what it sends",
    "claude": "a program of others; tests/clients/test_agent_traffic.py sends what it sends",
    "llama-server": "a program of others",
    "llama-gguf-split": "a program of others",
    "vllm": "a program of others",
    "ovms": "a program of others",
    "openssl": "makes files of the operator",
    "mkdir": "makes files of the operator",
    "chmod": "makes files of the operator",
    "sed": "makes files of the operator",
    "export": "sets variables of the reader's shell",
    "grep": "runs with the curl before it",
    "jq": "runs with the curl before it",
    "base64": "runs with the curl before it",
    "kill": "needs a process of the reader's",
    "echo": "makes files of the operator",
    "taskset": "needs the cores of the reader's machine",
    "llm": "a program of others",
    "open-webui": "a program of others",
    "n8n": "a program of others",
}
"""Programs that the test cannot run, with the reason."""

NOT_RUN_CURL: Final = {
    "/images/": "needs a model of images; tests/test_end_to_end_images.py asks one",
    "/audio/": "needs a model of speech; tests/test_end_to_end_speech.py asks one",
    '"sql"': "needs an adapter; the tests of adapters ask for one",
    "https://": "asks a server of the reader's",
    "/load": "needs a server of several models; tests/test_several_models.py asks it",
    "/unload": "needs a server of several models; tests/test_several_models.py asks it",
    "/reload": "needs a server with a list; tests/test_several_models.py asks it",
    "--unix-socket": "needs a server at a socket of the reader's",
}
"""Parts of lines of curl that the test cannot run, with the reason."""

NOT_RUN_PYTHON: Final = {
    "images": "needs a vision model; tests/clients/test_vision_clients.py asks one",
    "embeddings": "needs models that embed and rank, and LangChain",
    "batches": "needs a directory for files; tests/test_examples.py runs examples/batch.py",
    "ray": "tests/deploy/test_ray.py runs it, with the extra ray",
    "speech": "needs a model of speech; tests/test_end_to_end_speech.py asks one",
    "image-generation": "needs a model of images; tests/test_end_to_end_images.py asks one",
    "lora": "trains an adapter, which needs torch",
    "clients": "needs packages of others",
}
"""Pages whose blocks of `py` the test cannot run, with the reason. Blocks of `python` are run by
test_pages.py."""

OUTPUTS: Final = frozenset(
    ("text", "json", "yaml", "toml", "ini", "nginx", "haproxy", "caddy", "python", "py", "jsonl")
)


def test_the_pages_are_found():
    assert len(PAGES) > 30
    assert len(BLOCKS) > 100
    assert {block.language for block in BLOCKS} - OUTPUTS <= set(SHELLS)


@pytest.mark.parametrize(
    "page",
    [
        page for page in PAGES if page.stem != "page"
    ],  # a template for the reader, with an address to replace
    ids=lambda page: page.stem,
)
def test_page_begins_with_an_example_in_a_fenced_block(page: Path):
    """Blocks by indentation are not allowed, because they would not be found here."""
    first = next((block for block in blocks_of(page) if block.language not in ("text", "")), None)
    assert first is not None
    assert first.line <= FIRST_SCREEN
    assert not re.search(r"(?m)^\n    \S", prose_of(page)), "an indented block"


def test_the_pages_are_short():
    """Words have a letter or a digit; blocks are not counted."""
    words = {
        page.stem: sum(any(map(str.isalnum, word)) for word in prose_of(page).split())
        for page in PAGES
        if page.stem != "troubleshooting"  # generated from the messages of the code
    }
    assert sum(words.values()) <= MAX_WORDS, words


@pytest.fixture(scope="module")
def documented_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the names of models that the pages use."""
    names = ("demo_model", "chat", "demo")
    state = str(tmp_path_factory.mktemp("state"))
    server = start_server("--served-model-name", *names, "--state-dir", state)
    yield server
    stop_server(server)


def shell_blocks() -> list[Block]:
    return [block for block in BLOCKS if block.language in SHELLS]


@pytest.mark.parametrize("block", shell_blocks(), ids=lambda block: block.place)
def test_a_command_runs(block: Block, request: pytest.FixtureRequest):
    """Requests of curl are sent to a real server; command lines of fastovms are parsed."""
    commands = list(commands_of(block))
    assert commands
    for command in commands:
        for words in simple_commands(command):
            program = Path(words[0]).name
            if program == "curl":
                if not any(part in command for part in NOT_RUN_CURL):
                    ask(request.getfixturevalue("documented_server"), command)
            elif program == "fastovms":
                parse_line(words[1:])
            else:
                assert program in NOT_RUN, f"{block.place}: {command}"


def ask(server: Server, command: str) -> None:
    """Runs a line of curl; an answer with an error status is a failure."""
    if shutil.which("curl") is None:
        pytest.skip("curl is missing: apt-get install curl")
    line = re.sub(r"(http://)?(127\.0\.0\.1|localhost):\d+", server.url, command)
    line = re.sub(r"\bcurl\b", "curl --fail-with-body -sS", line).rstrip().removesuffix("&")
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def parse_line(words: list[str]) -> None:
    """Parses a command line as the program does: an unknown flag or a wrong value is a failure."""
    try:
        parse(words)
    except SystemExit as end:
        if end.code:
            pytest.fail(f"fastovms {' '.join(words)}")


def test_snippets_of_python_are_listed():
    pages = {block.place.rpartition("-")[0] for block in BLOCKS if block.language == "py"}
    assert pages == set(NOT_RUN_PYTHON)
    for block in BLOCKS:
        if block.language == "py":
            compile(block.text, block.place, "exec")


def test_documents_in_json_are_valid():
    found = [block for block in BLOCKS if block.language == "json"]
    assert found
    for block in found:
        json.loads(block.text)


OF_OTHERS: Final = frozenset(
    ("--weight-format", "--group-size", "--sym", "--ratio", "--library", "--merge",  # of exports
     "--alias", "--chat-template-file", "--jinja", "--slot-save-path", "--embedding", "--reranking",
     "--base-url", "--url",  # of llama.cpp and vLLM
     "--processor-time",
     "--cpus", "--cpuset-cpus", "--memory", "--read-only", "--tmpfs", "--stop-timeout", "--now",
     "--live", "--stream")
)  # fmt: skip
"""Flags of other programs that pages name in their text."""


def known_flags() -> set[str]:
    """Returns the flags of all commands, and the accepted flags of other servers."""
    parser = command_parser()
    [commands] = [action for action in parser._actions if isinstance(action.choices, dict)]
    assert isinstance(commands.choices, dict)
    flags = {
        name for command in commands.choices.values() for name in command._option_string_actions
    }
    foreign = {flag.name for flag in FOREIGN_FLAGS} | {option.flag for option in OVMS_OPTIONS}
    return (
        flags
        | foreign
        | {*REFUSED_FLAGS, *ALIASES, *VLLM_NAMES, *OF_OTHERS, "--config", "--version"}
    )


def test_every_flag_of_ovms_is_in_its_page():
    page = (generate.DOCS / "from-ovms.md").read_text()
    assert [
        flag for flag in generate.OVMS_FLAGS.read_text().split() if f"`{flag}`" not in page
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_of_flags_and_metrics_exist(page: Path):
    known = known_flags()
    quoted = {
        word.partition("=")[0].replace("_", "-")
        for span in re.findall(r"`([^`\n]+)`", prose_of(page))
        for word in span.split()
        if re.match(r"--[a-z][\w-]*[a-z0-9](=|$)", word)
    }
    unknown = {flag for flag in quoted - known if f"--{flag.removeprefix('--no-')}" not in known}
    assert unknown == set()
    metrics = set(re.findall(r"`(fastovms_\w+)`", prose_of(page)))
    listed = set(re.findall(r"`(fastovms_\w+)`", (generate.DOCS / "metrics.md").read_text()))
    assert metrics - listed == set()
