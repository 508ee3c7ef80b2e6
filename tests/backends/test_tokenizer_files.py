"""Tests of model directories that lack files: the other files decide, as in OpenVINO GenAI."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import openvino_genai
import pytest

from fastovms.backends.model_files import read_model_info
from fastovms.server_config import DEMO_MODEL
from fastovms.text.template_files import DEFAULT, find_templates, special_tokens

Change = Callable[[Path], object]
END, TEXT_END, START = 2, 0, 1
XML = "openvino_tokenizer.xml"


def without(*names: str) -> Change:
    """Deletes files."""
    return lambda path: [(path / name).unlink() for name in names]


def silent(file: str, *keys: str) -> Change:
    """Deletes members of a JSON file."""

    def change(path: Path) -> None:
        config = json.loads((path / file).read_text())
        (path / file).write_text(json.dumps({k: v for k, v in config.items() if k not in keys}))

    return change


def says(file: str, **members: object) -> Change:
    """Adds members to a JSON file."""

    def change(path: Path) -> None:
        config = json.loads((path / file).read_text())
        (path / file).write_text(json.dumps({**config, **members}))

    return change


def graph(name: str, value: str | None) -> Change:
    """Sets or deletes a member of the tokenizer's `rt_info`."""

    def change(path: Path) -> None:
        text = re.sub(rf"<{name} value=.*?/>", "", (path / XML).read_text())
        member = "" if value is None else f'<{name} value="{value}" />'
        (path / XML).write_text(text.replace("<rt_info>", f"<rt_info>{member}"))

    return change


CONFIGS = (
    silent("generation_config.json", "eos_token_id"),
    silent("config.json", "eos_token_id"),
)
TEXTS = without("tokenizer_config.json", "special_tokens_map.json")

WAYS: dict[str, tuple[tuple[Change, ...], set[int]]] = {
    "nothing is missing": ((), {END, TEXT_END}),
    "no generation_config.json": ((without("generation_config.json"),), {END}),
    "the configs are silent": (CONFIGS, {END}),
    "only the graph speaks": ((*CONFIGS, TEXTS), {END}),
    "only the graph speaks, no tokenizer.json": (
        (*CONFIGS, TEXTS, without("tokenizer.json")),
        {END},
    ),
    "only tokenizer_config.json speaks": (
        (*CONFIGS, graph("eos_token_id", None), without("special_tokens_map.json")),
        {END},
    ),
    "only special_tokens_map.json speaks": (
        (*CONFIGS, graph("eos_token_id", None), without("tokenizer_config.json")),
        {END},
    ),
    "only special_tokens_map.json speaks, no tokenizer.json": (
        (
            *CONFIGS,
            graph("eos_token_id", None),
            without("tokenizer_config.json", "tokenizer.json"),
        ),
        {END},
    ),
    "the graph names another one": ((graph("eos_token_id", "1"),), {END, TEXT_END, START}),
    "a turn ends otherwise": (
        (*CONFIGS, says("tokenizer_config.json", eot_token="<|im_start|>")),
        {END, START},
    ),
    "a token as an object": (
        (*CONFIGS, says("tokenizer_config.json", eos_token={"content": "<|endoftext|>"})),
        {END, TEXT_END},
    ),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))


@pytest.mark.parametrize(("changes", "expected"), WAYS.values(), ids=WAYS)
def test_end_tokens_are_found_where_files_or_fields_are_missing(
    model: Path, changes: tuple[Change, ...], expected: set[int]
) -> None:
    for change in changes:
        change(model)
    found = read_model_info(model).eos_token_ids
    assert found == expected
    # GenAI reads special_tokens_map.json only beside tokenizer_config.json.
    assert openvino_genai.Tokenizer(model).get_eos_token_id() in {*found, -1}


@pytest.mark.parametrize("has_json", [True, False])
def test_special_tokens_are_read_from_the_graph(model: Path, has_json: bool) -> None:
    for change in (TEXTS, graph("bos_token_id", "1")):
        change(model)
    if not has_json:
        without("tokenizer.json")(model)
    found = special_tokens(model)
    tokenizer = openvino_genai.Tokenizer(model)
    assert found["bos_token"] == tokenizer.get_bos_token() == "<|im_start|>"
    assert found["eos_token"] == tokenizer.get_eos_token()
    assert found["pad_token"] == tokenizer.get_pad_token()


def test_chat_template_is_read_from_the_graph(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    silent("tokenizer_config.json", "chat_template")(model)
    found = find_templates(model)[DEFAULT]
    assert found == openvino_genai.Tokenizer(model).get_original_chat_template()
    assert found == (DEMO_MODEL / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert find_templates(model)[DEFAULT] == "{{ messages }}"
