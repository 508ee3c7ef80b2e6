"""Tests of `fastovms/cli/modelfile.py`: Modelfiles of Ollama become settings of `serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fastovms.cli.environment import all_settings
from fastovms.cli.modelfile import instructions, read_modelfile
from fastovms.cli.serve import add_serving_arguments, chosen_models
from fastovms.errors import ConfigurationError
from fastovms.server_config import CHAT, ENGINE, FILES, ModelSource, Settings

WHOLE = '''
# A plumber.
FROM ./model.gguf
parameter temperature 0.3
PARAMETER\ttop_k  20
PARAMETER repeat_penalty 1.1
PARAMETER num_predict 100
PARAMETER num_ctx 2048
PARAMETER num_thread 2
PARAMETER stop "<|end|>"
PARAMETER seed 3
PARAMETER stop <|eot|>
TEMPLATE """{{ .Prompt }}"""
SYSTEM """You are Mario.
# not a comment
Answer "as Mario"."""
MESSAGE user Who are you?
MESSAGE assistant """It's me,
Mario!"""
ADAPTER ./plumber
LICENSE "MIT"
'''


def read(path: Path, *line: str) -> tuple[list[ModelSource], Settings, list[str]]:
    """Returns the models, the settings and the lines about unused instructions."""
    parser = argparse.ArgumentParser()
    add_serving_arguments(parser, shows_all=True)
    arguments = parser.parse_args([*line, "--modelfile", str(path)])
    settings = all_settings(arguments, {})
    models, settings = chosen_models(arguments, settings)
    return models, settings, arguments.unused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "plumber").mkdir()
    (tmp_path / "adapter.gguf").touch()
    (tmp_path / "Modelfile").write_text(WHOLE)
    return tmp_path / "Modelfile"


def test_each_line_becomes_a_setting(path: Path) -> None:
    [model], settings, unused = read(path)
    assert model.location == str(path.parent / "model.gguf")
    assert settings.given[FILES.override_generation_config] == {
        "temperature": 0.3,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "max_new_tokens": 100,
    }
    assert settings.given[ENGINE.max_model_len] == 2048
    assert settings.given[ENGINE.plugin_config] == {"INFERENCE_NUM_THREADS": 2}
    assert settings.given[ENGINE.lora_modules] == {"plumber": path.parent / "plumber"}
    assert settings.given[CHAT.system_prompt] == (
        'You are Mario.\n# not a comment\nAnswer "as Mario".'
    )
    assert settings.given[CHAT.example_messages] == (
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "It's me,\nMario!"},
    )
    starts = [line.partition(" is not used: ")[0].removeprefix(str(path)) for line in unused]
    assert starts == [
        ", lines 10, 12: PARAMETER stop",
        ", line 11: PARAMETER seed",
        ", line 13: TEMPLATE",
        ", line 20: ADAPTER",
    ]


def test_flags_override_a_modelfile(path: Path) -> None:
    [model], settings, _ = read(path, "other", "--max-model-len", "512", "--system-prompt", "")
    assert model.location == "other"
    assert settings.given[ENGINE.max_model_len] == 512
    assert settings.given[CHAT.system_prompt] == ""


@pytest.mark.parametrize(
    ("value", "location"),
    [
        ("hf.co/ORG/NAME", "ORG/NAME"),
        ("https://huggingface.co/ORG/NAME:latest", "ORG/NAME"),
        ("hf.co/ORG/NAME:a-Q4_0.gguf", "ORG/NAME/a-Q4_0.gguf"),
        ('"./model.gguf"', "{dir}/model.gguf"),
        (".", "{dir}"),
    ],
)
def test_from_names_a_file_or_a_model_of_a_hub(path: Path, value: str, location: str) -> None:
    path.write_text(f"FROM {value}\n")
    [model], _, unused = read(path)
    assert (model.location, unused) == (location.format(dir=path.parent), [])


def test_template_in_jinja_replaces_the_models(path: Path) -> None:
    path.write_text('FROM .\nTEMPLATE """{% for m in messages %}{{ m.content }}{% endfor %}"""\n')
    _, settings, unused = read(path)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert (settings.given[CHAT.chat_template], unused) == (template, [])


def test_second_from_is_named_and_not_used(path: Path) -> None:
    path.write_text("FROM .\nFROM ./model.gguf\nRENDERER x\n")
    [model], _, unused = read(path)
    assert model.location == str(path.parent)
    assert [line.partition(", ")[2].partition(" is not")[0] for line in unused] == [
        "line 2: FROM",
        "line 3: RENDERER",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no FROM"),
        ("FROM llama3.2:3b", "line 1: FROM llama3.2:3b names a model of Ollama's library"),
        ("FROM hf.co/ORG/NAME:Q4_K_M", "line 1: .*must name the file, such as hf.co/ORG/NAME:FILE"),
        ("FROM ./missing.gguf", "line 1: FROM names /.*missing.gguf, which does not exist"),
        ("FROM .\n\nFORM x", "line 3: an instruction is FROM, .*not 'FORM'"),
        ("FROM .\nSYSTEM", "line 2: SYSTEM has no value"),
        ('FROM .\nSYSTEM """a\nb', 'line 2: the quote """ of SYSTEM has no end'),
        ("FROM .\nPARAMETER heat 3", "line 2: there is no parameter 'heat'"),
        ("FROM .\nPARAMETER temperature", "line 2: PARAMETER temperature has no value"),
        ("FROM .\nPARAMETER temperature hot", "line 2: PARAMETER temperature must be a number"),
        ("FROM .\nPARAMETER num_thread 0", "line 2: PARAMETER num_thread must be an integer"),
        ("FROM .\nMESSAGE tool hi", "line 2: MESSAGE must be a role .* and a text"),
        ("FROM .\nMESSAGE user", "line 2: MESSAGE user has no value"),
        ("FROM .\nADAPTER ./adapter.gguf", "line 2: ADAPTER must be a directory"),
    ],
)
def test_error_names_the_line(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read(path)


def test_model_of_the_line_replaces_one_of_ollamas_library(path: Path) -> None:
    path.write_text("FROM llama3.2\n")
    [model], _, _ = read(path, "other")
    assert model.location == "other"


def test_modelfile_is_for_one_model(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--modelfile is for one model"):
        read(path, "--model", "a=x", "--model", "b=y")


def test_file_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_modelfile(tmp_path / "none")


def test_quotes_inside_a_value_stay() -> None:
    text = 'SYSTEM "He said "hi"."\nSYSTEM """\na\n\nb\n"""\nSYSTEM ""\n'
    values = [instruction.value for instruction in instructions(text, "f")]
    assert values == ['He said "hi".', "\na\n\nb\n", ""]
