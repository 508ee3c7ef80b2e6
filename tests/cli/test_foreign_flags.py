"""Tests of `fastovms/cli/foreign_flags.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fastovms.cli.command import CommandParser
from fastovms.cli.flags import FLAGS, read_flags
from fastovms.cli.foreign_flags import ALIASES, mapped_flags, unused_flags
from fastovms.cli.foreign_tables import FOREIGN_FLAGS, OTHER_COMMANDS, REFUSED_FLAGS, SHORT_NAMES
from fastovms.cli.main import COMMANDS, check_first_word, define, parse, with_command
from fastovms.cli.serve import add_serving_arguments
from fastovms.config import OWN_HEAD, ApiConfig, HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.server_config import (
    CHAT,
    ENCODER,
    ENGINE,
    FILES,
    MODEL_SECTIONS,
    MediaConfig,
    RepositoryConfig,
    SecurityConfig,
    ServiceConfig,
)
from tests.cli.test_flags import arguments_of

# Command lines of other servers, translated into this server's flags.


def normalize(line: list[str]) -> list[str]:
    """Returns a command line as it is parsed."""
    name, *rest = with_command(line)
    if name not in COMMANDS:
        return [name, *rest]
    parser = CommandParser()
    define(name, parser)
    return [name, *parser.normalize(rest)]


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("", "serve"),
        ("my_model", "serve my_model"),
        ("serve my_model --model_name a_b true", "serve my_model --model-name a_b true"),
        ("org/a_b --port 1", "serve org/a_b --port 1"),
        ("--help", "--help"),
        ("--version", "--version"),
        # A switch whose name here has the opposite meaning.
        ("--disable-fastapi-docs", "serve --no-enable-docs"),
        ("--disable-fastapi-docs=false", "serve --enable-docs"),
        ("--no-disable-fastapi-docs", "serve --enable-docs"),
        ("serve --port 1", "serve --port 1"),
        ("--pull true --source_model a/b", "serve --pull --source-model a/b"),
        ("--dynamic_split_fuse=false", "serve --no-dynamic-split-fuse"),
        ("m -tp 1 -pp=2 -dp 1 -q awq",
         "serve m --tensor-parallel-size 1 --pipeline-parallel-size=2 --data-parallel-size 1 "
         "--quantization awq"),
        ("run-batch -i in -o out -tp 1", "run-batch -i in -o out --tensor-parallel-size 1"),
        ("chat -q x", "chat -q x"),
        ("-m a.gguf -c=9 -np 2", "serve --model a.gguf --ctx-size=9 --max-num-seqs 2"),
        ("serve -hf o/n -hff f.gguf", "serve --source-model o/n --gguf-filename f.gguf"),
        ("help", "--help"),
        ("help pull", "pull --help"),
        ("help list", "serve --list-models --help"),
        ("help a/b", "serve a/b --help"),
        ("version", "--version"),
        ("-v", "--version"),
        ("-v -m a", "serve --verbose --model a"),
        ("list", "serve --list-models"),
        # Several keys behind one flag, where a word cannot be the model.
        ("m --api-key a b c --port 1", "serve m --api-key a --api-key b --api-key c --port 1"),
        ("--api_key a b --model m", "serve --api-key a --api-key b --model m"),
        ("--api-key a m", "serve --api-key a m"),
        # In OVMS's command lines --port is for gRPC in any position, and the default address is
        # any.
        ("--port 9000 --rest_port 8000",
         "serve --grpc-port 9000 --port 8000 --host 0.0.0.0"),
        ("--rest_port=8000 --port=9000", "serve --port=8000 --grpc-port=9000 --host 0.0.0.0"),
        ("serve --rest-port 8000 --rest_bind_address ::1", "serve --port 8000 --host ::1"),
        ("--rest_port 8000 --uds /s", "serve --port 8000 --uds /s"),
    ],
)  # fmt: skip
def test_line_of_another_server_is_normalized(line, normal):
    assert normalize(line.split()) == normal.split()


def test_every_alias_names_a_flag():
    parser = argparse.ArgumentParser()
    add_serving_arguments(parser, shows_all=True)
    names = set(parser._option_string_actions)
    assert set(ALIASES.values()) <= names
    assert {ALIASES.get(name, name) for name in SHORT_NAMES.values()} <= names
    assert not names & {*ALIASES, *SHORT_NAMES}


# Flags of other servers: used, logged as unused, or refused with a wrong value.


OVMS_LINE = """
--port 9000 --rest_port 8000 --grpc_bind_address 0.0.0.0 --rest_bind_address 127.0.0.1
--rest_workers 4 --grpc_workers 1 --task text_generation --target_device CPU --log_level TRACE
--log_path log --cache_size 2 --max_num_seqs 16 --max_num_batched_tokens 512
--enable_prefix_caching true --dynamic_split_fuse true --pipeline_type LM_CB
--kv_cache_precision u8 --draft_source_model org/draft --max_prompt_len 1024
--model_distribution_policy TENSOR_PARALLEL --enable_tool_guided_generation true
--cache_interval_multiplier 8 --file_system_poll_wait_seconds 0 --metrics_enable
--metrics_list ovms_requests_success,ovms_streams --api_key_file keys --verbose_response false
--allowed_local_media_path /media --allowed_media_domains all --allow_credentials false
--allowed_headers * --allowed_methods * --allowed_origins * --weight-format int8
--model_repository_path /models --overwrite_models
--plugin_config {"PERFORMANCE_HINT":"LATENCY"}
"""


def test_line_of_ovms_becomes_settings():
    arguments = arguments_of(*OVMS_LINE.split())
    settings = read_flags(arguments)
    http = settings.section(HttpConfig)
    assert (http.host, http.port) == ("127.0.0.1", 8000)
    assert settings.section(ServiceConfig).log_file == Path("log")
    assert settings.section(ServiceConfig).ovms_metrics is True
    assert settings.section(RepositoryConfig).path == Path("/models")
    assert settings.section(MediaConfig).allowed_media_domains == "all"
    assert settings.section(MediaConfig).allowed_local_media_path == Path("/media")
    assert settings.only(*MODEL_SECTIONS).given == {
        ENGINE.device: "CPU",
        ENGINE.cache_size: 2.0,
        ENGINE.max_num_seqs: 16,
        ENGINE.max_num_batched_tokens: 512,
        ENGINE.enable_prefix_caching: True,
        ENGINE.draft_model: Path("org/draft"),
        ENGINE.plugin_config: {"PERFORMANCE_HINT": "LATENCY", "KV_CACHE_PRECISION": "u8"},
        ENCODER.task: "text_generation",
    }
    told = {line.partition(" is not used: ")[0] for line in unused_flags(arguments)}
    assert told == {
        "--grpc-port", "--grpc-bind-address", "--grpc-workers", "--rest-workers",
        "--max-prompt-len", "--model-distribution-policy", "--enable-tool-guided-generation",
        "--cache-interval-multiplier", "--metrics-list", "--weight-format",
    }  # fmt: skip


OVMS_FLAGS = (Path(__file__).parent / "ovms_flags.txt").read_text().split()
"""The flags of `ovms --help` of 2026.4 for all tasks, and those of earlier versions."""


def test_every_flag_of_ovms_is_known():
    parser = CommandParser()
    define("serve", parser)
    known = {"--version", *parser._option_string_actions}
    assert [flag for flag in OVMS_FLAGS if parser.normalize([flag])[0] not in known] == []


VLLM_LINE = """
--host 0.0.0.0 --port 8000 --api-key a --api-key b --max-model-len 4k --max-num-seqs 8 --dtype auto
--gpu-memory-utilization 0.9 --tensor-parallel-size 1 --enable-prefix-caching
--enable-chunked-prefill --root-path /x --generation-config vllm --enable-auto-tool-choice
--disable-log-requests --no-enable-log-requests --trust-remote-code --max-logprobs 5
--uvicorn-log-level info --swap-space 0
--speculative-config {"method":"mtp","num_speculative_tokens":1}
"""


def test_line_of_vllm_becomes_settings():
    arguments = arguments_of(*VLLM_LINE.split())
    settings = mapped_flags(arguments) | read_flags(arguments)
    assert settings.section(SecurityConfig).api_keys == ("a", "b")
    assert settings.section(HttpConfig).root_path == "/x"
    assert settings.section(ApiConfig).max_logprobs == 5
    assert settings.only(*MODEL_SECTIONS).given == {
        ENGINE.max_model_len: 4000,
        ENGINE.max_num_seqs: 8,
        ENGINE.enable_prefix_caching: True,
        ENGINE.draft_model: OWN_HEAD,
        FILES.generation_config: Path("vllm"),
    }
    told = {line.partition(" is not used: ")[0] for line in unused_flags(arguments)}
    assert told == {"--gpu-memory-utilization", "--trust-remote-code", "--uvicorn-log-level"}


LLAMA_LINE = """
-m model.gguf -c 8192 -np 4 -t 2 -tb 4 -ngl 99 -fa -ctk q8_0 -ctv q8_0 -a chat --jinja
--temp .7 --top-k 40 --top-p 0.95 --repeat-penalty 1 -n 256 --mirostat 0 -b 2048 -ub 512
--no-webui --host 0.0.0.0 --port 8080 --no-mmap --metrics --chat-template-kwargs {"a":1}
--reasoning off --reasoning-format none -v --timeout 600 --cache-reuse 256 --no-warmup
"""


def test_line_of_llama_cpp_becomes_settings():
    arguments = parse(LLAMA_LINE.split())
    settings = mapped_flags(arguments) | read_flags(arguments)
    assert (arguments.models, arguments.names) == (["model.gguf"], ["chat"])
    http = settings.section(HttpConfig)
    assert (http.host, http.port) == ("0.0.0.0", 8080)
    assert settings.section(SecurityConfig).ui is False
    assert settings.section(ServiceConfig).log_level == "debug"
    assert settings.only(*MODEL_SECTIONS).given == {
        ENGINE.max_model_len: 8192,
        ENGINE.max_num_seqs: 4,
        ENGINE.plugin_config: {"INFERENCE_NUM_THREADS": 2, "KV_CACHE_PRECISION": "u8"},
        FILES.override_generation_config: {
            "temperature": 0.7, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1,
            "max_new_tokens": 256,
        },
        CHAT.default_chat_template_kwargs: {"a": 1, "enable_thinking": False},
        CHAT.reasoning_parser: "none",
    }  # fmt: skip
    told = {line.partition(" is not used: ")[0] for line in unused_flags(arguments)}
    assert told == {
        "--threads-batch", "--gpu-layers", "--batch-size", "--ubatch-size", "--timeout",
        "--cache-reuse",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("serve --prot 1", "there is no flag --prot: did you mean --port?"),
        ("serve -port 1", "there is no flag -port: did you mean --port?"),
        ("serve --thread 1 --modle m", "--thread: did you mean --threads?, there is no flag --mod"),
        ("chat --modle x", "there is no flag --modle: did you mean --model?"),
        ("serve --ctx-siz 1", "there is no flag --ctx-siz: did you mean --ctx-size?"),
        ("tune -t 2 m", "there is no flag -t: did you mean --threads?"),
        ("serve --xyzzy", "there is no flag --xyzzy (see fastovms serve --help-all)"),
        ("serve a b", "unexpected argument b; several models are --model NAME=MODEL each"),
        ("pull a/b --por", "there is no flag --por (see fastovms pull --help)"),
    ],
)
def test_unknown_flag_names_the_nearest_one(line, message, capsys):
    with pytest.raises(SystemExit):
        parse(line.split())
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("serv", "did you mean serve?"),
        ("run", "chat MODEL chats in the terminal"),
        ("ps", "GET /api/ps"),
        ("llama3.2", "a model of a hub is ORG/NAME: commands are serve, pull"),
    ],
)
def test_unknown_command_names_what_to_use(word, message):
    with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")):
        check_first_word(word)


@pytest.mark.parametrize("word", [*OTHER_COMMANDS, "serve", "help", "--port", "a/b", "a=b", "list"])
def test_first_word_may_be_a_model_or_a_command(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if word in OTHER_COMMANDS:  # a directory of that name is a model
        (tmp_path / word).mkdir()
    check_first_word(word)


HARMLESS = """
-tp 2 -pp 1 -q awq -O3 --limit-mm-per-prompt image=2 --download-dir d --hf-token t
--distributed-executor-backend mp --disable-uvicorn-access-log --max-seq-len-to-capture 8192
--num-scheduler-steps 8 --model-impl vllm --api-server-count 2 --disable-frontend-multiprocessing
--tokenizer-revision r --code-revision r --runner pooling --convert embed --mm-processor-kwargs {}
--stream-interval 4 --enable-server-load-tracking --h11-max-header-count 9 --log-config-file f
--enable-reasoning
"""


def test_harmless_flags_of_vllm_are_reported_as_unused():
    arguments = arguments_of(*HARMLESS.split())
    told = {line.partition(" is not used: ")[0] for line in unused_flags(arguments)}
    given = {word for word in HARMLESS.split() if word.startswith("--")}
    unchanged = {"--disable-frontend-multiprocessing", "--enable-reasoning"}
    assert told == (given - unchanged) | {
        "--tensor-parallel-size", "--quantization", "--compilation-config",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("task", "expected"),
    [("generate", "text_generation"), ("embed", "embeddings"), ("score", "rerank")],
)
def test_task_in_the_words_of_vllm_is_translated(task, expected):
    assert read_flags(arguments_of("--task", task)).given[ENCODER.task] == expected


@pytest.mark.parametrize("name", REFUSED_FLAGS)
@pytest.mark.parametrize("values", [[], ["a=b", "c=d"]])
def test_flags_that_change_answers_are_refused_with_a_reason(name, values):
    with pytest.raises(argparse.ArgumentError) as caught:
        arguments_of(name, *values)
    assert str(caught.value) == f"argument {name}: is not supported: {REFUSED_FLAGS[name]}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--mirostat 2", "must be 0, not '2': this sampler is not supported"),
        ("-fa model.gguf", "must be on, off or auto, not 'model.gguf'"),
        ("-ctk q5_1", "must be q8_0, q4_0, f16, bf16 or f32, not 'q5_1'"),
        ("-c -1", "must be an integer at least 0, not '-1'"),
        ("--temp warm", "must be a number, not 'warm'"),
        ("--lora a.gguf", "--lora-modules NAME=DIR"),
        ("--limit-mm-per-prompt two", "must be such as image=2, or a JSON object, not 'two'"),
        ("--rest_workers 0", "must be an integer at least 1, not '0'"),
        ("--pipeline_type cb", "must be AUTO, LM, VLM, LM_CB, VLM_CB or OMNI, not 'cb'"),
        ("--model_distribution_policy X", "must be TENSOR_PARALLEL or PIPELINE_PARALLEL"),
        ("--kv_cache_precision u9", "must be u4, u8, f16, bf16 or f32, not 'u9'"),
        ("--gpu-memory-utilization much", "must be a number of shares"),
        ("--dtype int1", "not 'int1'"),
        ("--file_system_poll_wait_seconds -1", "must be a time of 0 or more"),
    ],
)
def test_wrong_value_of_a_foreign_flag_is_refused(line, message):
    with pytest.raises(argparse.ArgumentError) as caught:
        arguments_of(*line.split())
    assert message in str(caught.value)


ONE_VALUE = ("--logprobs-mode", "--ssl-cert-reqs")


def test_flags_without_use_are_not_those_with_one():
    names = [flag.name for flag in (*FLAGS, *FOREIGN_FLAGS)]
    assert len(names) == len(set(names))
    assert not set(names) & set(ALIASES)
    assert not {*names, *ALIASES} & set(REFUSED_FLAGS)
    for flag in FOREIGN_FLAGS:
        assert flag.reason or flag.neutral or flag.settings or flag.name in ONE_VALUE
