"""The tables of flags in the documentation name what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastovms.cli.flags import FLAGS
from fastovms.cli.foreign_flags import ALIASES
from fastovms.cli.foreign_tables import FOREIGN_FLAGS

DOCS = Path(__file__).parents[1] / "docs"
OF_MODELS = {
    "--model", "--model-name", "--served-model-name", "--model-path", "--source-model",
    "--gguf-filename", "--config-path", "--pull", "--list-models", "--add-to-config",
    "--remove-from-config", "--configure",
}  # fmt: skip


def rows(page: str) -> Iterator[tuple[list[str], str]]:
    """What the first column of the table of flags quotes, and the second column."""
    section = (DOCS / page).read_text().partition("## Flags\n")[2].partition("\n#")[0]
    section = section.partition("<!-- flags -->")[0]  # which is generated
    for line in section.splitlines():
        if line.startswith("| `"):
            first, second = line.strip("| ").split(" | ")
            yield re.findall(r"`([^`]+)`", first), second


@pytest.mark.parametrize("page", ["from-ovms.md", "from-vllm.md"])
def test_flags_named_in_a_migration_page_exist(page):
    known = OF_MODELS | {flag.name for flag in FLAGS}
    known |= {f"--no-{flag.name[2:]}" for flag in FLAGS if flag.kind.parse is None}
    unused = {flag.name for flag in FOREIGN_FLAGS}
    known |= {flag.name for flag in FOREIGN_FLAGS if flag.settings} | {"--config"}
    known |= {"--group-name", "--help", "--version"}  # of other modes
    count = 0
    for quoted, meaning in rows(page):
        for text in quoted:
            name = text.split()[0].replace("_", "-")
            if not name.startswith("--") or name.endswith("*"):
                continue
            count += 1
            if meaning == "no use":
                assert name in unused
            else:
                assert ALIASES.get(name, name) in known or name == "--task"
    assert count > 10


def test_flags_named_in_the_threat_model_exist():
    known = {flag.name for flag in FLAGS}
    known |= {f"--no-{name.removeprefix('--')}" for name in known} | {"--version"}
    # Commands of other programs are in blocks.
    text = re.sub(r"```.*?```", "", (DOCS / "security.md").read_text(), flags=re.DOTALL)
    quoted = {name for span in re.findall(r"`([^`]+)`", text) for name in span.split()}
    flags = {name for name in quoted if name.startswith("--") and "*" not in name}
    assert len(flags) > 25
    assert flags <= known
