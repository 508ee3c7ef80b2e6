"""The tables of flags and variables in the documentation name what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastovms.cli.environment import CONFIG_FILE, EXTRA_ARGUMENTS, IGNORED, VARIABLES
from fastovms.cli.flags import FLAGS
from fastovms.cli.foreign_flags import ALIASES
from fastovms.cli.foreign_tables import FOREIGN_FLAGS
from fastovms.ovms.options import OVMS_OPTIONS

DOCS = Path(__file__).parents[1] / "docs"
TABLES = (DOCS / "compatibility.md").read_text()
OF_MODELS = {
    "--model", "--model-name", "--served-model-name", "--model-path", "--source-model",
    "--gguf-filename", "--config-path", "--pull", "--list-models", "--add-to-config",
    "--remove-from-config", "--configure",
}  # fmt: skip
OF_LIBRARIES = {"API_KEY", "VLLM_API_KEY", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"}


def rows(title: str) -> Iterator[tuple[list[str], str]]:
    """What the first column quotes, and the second column."""
    section = TABLES.partition(f"### {title}\n")[2].partition("\n#")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            first, second = line.strip("| ").split(" | ")
            yield re.findall(r"`([^`]+)`", first), second


@pytest.mark.parametrize("title", ["OpenVINO Model Server", "vLLM"])
def test_flags(title):
    known = OF_MODELS | {flag.name for flag in FLAGS}
    known |= {f"--no-{flag.name[2:]}" for flag in FLAGS if flag.parse is None}
    unused = {flag.name for flag in FOREIGN_FLAGS}
    known |= {flag.name for flag in FOREIGN_FLAGS if flag.settings} | {"--config"}
    count = 0
    for quoted, meaning in rows(title):
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


def test_variables():
    unused, used = set(), set()
    for quoted, meaning in rows("Environment"):
        (unused if "no use" in meaning or "always" in meaning else used).update(quoted)
    of_ovms = {option.variable for option in OVMS_OPTIONS if option.variable}
    own = {name for name, flag in VARIABLES.items() if name != flag[2:].replace("-", "_").upper()}
    assert used == own | of_ovms | {EXTRA_ARGUMENTS, CONFIG_FILE} | OF_LIBRARIES
    assert unused == set(IGNORED)


def test_flags_of_the_threat_model():
    known = {flag.name for flag in FLAGS}
    known |= {f"--no-{name.removeprefix('--')}" for name in known} | {"--version"}
    # Commands of other programs stand in blocks, without quotes.
    text = (DOCS / "security.md").read_text()
    quoted = {name for span in re.findall(r"`([^`]+)`", text) for name in span.split()}
    flags = {name for name in quoted if name.startswith("--") and "*" not in name}
    assert len(flags) > 25
    assert flags <= known
