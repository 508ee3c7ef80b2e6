"""Tests that the README and the pages of `docs/` are correct: examples run, tables are complete,
and paths and links exist."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from openai import OpenAI

from fastovms.text.reasoning import REASONING_FORMAT_ALIASES, REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMAT_ALIASES, TOOL_FORMATS
from tests.real_server import start_server, stop_server

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md"))]

EXAMPLES = {
    example: f"{page.name}-{number}"
    for page in PAGES
    for number, example in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    )
}
"""Languages of blocks. Blocks of `python` run with the demo model; blocks of `py` are parts of
programs, or need another model."""


def section(page: str, title: str) -> str:
    """Returns the text below a heading of the second level."""
    text = (DOCS / page).read_text()
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 120


def test_every_parser_is_in_the_table():
    rows = section("chat-and-tools.md", "Tool call formats").partition("| name |")[2]
    named = [name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row[:40])]
    assert sorted(named) == sorted({*TOOL_FORMATS, *REASONING_FORMATS})
    lists = [row.split("|")[2] for row in rows.splitlines() if row.startswith("| `")]
    others = {name for names in lists for name in names.split(",")}
    told = {name.strip() for name in others} - {""}
    assert told == {*TOOL_FORMAT_ALIASES, *REASONING_FORMAT_ALIASES}


@pytest.mark.nightly(but=("paged",))
@pytest.mark.parametrize("backend", ["paged", "genai"])
def test_the_examples_run(backend: str, capsys: pytest.CaptureFixture[str]):
    """The pages call a function `chat` of the reader's own."""
    assert len(EXAMPLES) >= 5
    server = start_server("--backend", backend, "--served-model-name", "demo_model", "chat")
    try:
        for example, name in EXAMPLES.items():
            code = example.replace("http://127.0.0.1:8000", server.url)
            names: dict[str, object] = {"__name__": name}
            exec(compile(code, name, "exec"), names)
            for value in names.values():
                if isinstance(value, OpenAI):
                    value.close()
            shown = capsys.readouterr().out
            assert shown.strip(), name
            for expected in re.findall(r"^ *print.*  # (.+?)(?:\.\.\.)?$", example, re.MULTILINE):
                assert expected in shown, name
    finally:
        stop_server(server)


@pytest.mark.parametrize(
    "page",
    [
        *(ROOT / "bench/results").glob("*.md"),
        *ROOT.glob("*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("deploy/*/README.md"),
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_outside_of_the_site_lead_to_files(page: Path):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)", text)
    local = [link for link in links if not link.startswith(("https://", "http://"))]
    assert [link for link in local if not (page.parent / link).exists()] == []
    assert page != README or len(local) > 20


def test_every_page_can_be_reached():
    config = (ROOT / "mkdocs.yml").read_text()
    names = {page.name for page in DOCS.glob("*.md")}
    assert set(re.findall(r": (\S+\.md)$", config, re.MULTILINE)) == names
    linked = set(re.findall(r"\]\(([\w-]+\.md)", (DOCS / "index.md").read_text()))
    assert linked == names - {"index.md"}


def test_each_row_of_tasks_names_definitions_of_its_files():
    text = section("contributing.md", "Where do I change X?")
    rows = re.findall(r"^\| (?!---|I want to)(.+?) \| (.+) \|$", text, re.MULTILINE)
    assert 20 <= len(rows) <= 60
    for task, cell in rows:
        named = re.findall(r"`(\w+)` in `([\w/.]+)`", cell)
        assert len(named) == len(re.findall(r"`[^`]+`", cell)) / 2, task
        for name, path in named:
            source = (ROOT / "fastovms" / path).read_text()
            defined = rf"^(?:class|def|async def) {name}\b|^{name}\b.* = "
            assert re.search(defined, source, re.MULTILINE), f"{task}: {name} in {path}"


_CHAT_FILES = """
config.py params.py request_fields.py backend.py errors.py
http/listeners.py http/server.py http/parser.py http/protocol.py http/wire.py http/writers.py
http/messages.py http/routing.py http/gates.py
app/routes.py api/endpoint.py api/dialect.py api/chat.py api/context.py api/typed_body.py
api/body.py api/request_schemas.py api/served.py api/fields.py api/prepare.py api/chat_messages.py
api/client_request.py api/chat_tools.py api/prompt.py api/constraint.py api/offload.py
text/template.py text/template_messages.py text/tokenizer.py
api/generate.py backends/paged/backend.py backends/engine_thread.py
engine/engine.py engine/scheduler.py engine/sequence.py engine/blocks.py
engine/model/model.py engine/model/step_inputs.py engine/processors.py engine/sampler.py
engine/sampling_kernels.py
text/output.py text/detokenizer.py text/stop.py text/scanning.py api/answer.py
app/serve.py app/compiling.py app/loading.py service/lifecycle.py
"""
"""The files that serve a chat with the paged backend."""


def _paths(text: str) -> set[str]:
    """Returns the names of files and folders in a text."""
    return set(re.findall(r"`([\w.*]+(?:/[\w.*]+)+/?|[\w*]+\.py)`", text))


def test_the_architecture_names_files_that_exist():
    parts = (section("architecture.md", "The way of a chat"),
             section("architecture.md", "Optional parts"))  # fmt: skip
    for paths in map(_paths, parts):
        assert len(paths) >= 15
        missing = [
            path for path in paths if not any([*(ROOT / "fastovms").glob(path), *ROOT.glob(path)])
        ]
        assert missing == []


def test_the_architecture_names_every_file_on_the_way_of_a_chat():
    assert (
        set(_CHAT_FILES.split()) - _paths(section("architecture.md", "The way of a chat")) == set()
    )


@pytest.mark.parametrize("package", ["http", "api"])
def test_the_architecture_leaves_no_file_out(package: str):
    text = (DOCS / "architecture.md").read_text()
    named = {file for path in _paths(text) for file in (ROOT / "fastovms").glob(path)}
    files = (ROOT / "fastovms" / package).rglob("[!_]*.py")
    left_out = [file for file in files if not named & {file, *file.parents}]
    assert [file.name for file in left_out] == []


def test_the_rules_of_contributing_name_paths_and_modules_that_exist():
    text = (DOCS / "contributing.md").read_text()
    paths = re.findall(r"`((?:fastovms|tests|docs|examples|bench|deploy|\.ci)/[^` ]*)`", text)
    modules = re.findall(r"python -m ((?:tests|docs|bench)[\w.]*)", text)
    assert len(paths) >= 5
    assert len(modules) >= 3
    candidates = {path: [ROOT / path] for path in paths}
    for module in modules:
        base = ROOT / module.replace(".", "/")
        candidates[module] = [base.with_suffix(".py"), base / "__main__.py"]
    assert [name for name, files in candidates.items() if not any(map(Path.exists, files))] == []


def test_extensions_names_exceptions_that_exist():
    text = section("extensions.md", "Errors")
    found = re.findall(r"((?:`\w+`(?:,\s| and )?)+) of `([\w.]+)`", text)
    names = [name for listed, _ in found for name in re.findall(r"\w+(?:Failed|Error)", listed)]
    assert len(names) == 4
    for listed, module in found:
        for name in re.findall(r"`(\w+)`", listed):
            assert issubclass(getattr(import_module(module), name), Exception)
