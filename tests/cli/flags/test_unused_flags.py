"""Flags of other servers: used, told as unused, or refused where they are wrong."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fastovms.cli.flags.aliases import ALIASES
from fastovms.cli.flags.flags import FLAGS, read_flags
from fastovms.cli.flags.unused_flags import FOREIGN_FLAGS, unused_flags
from fastovms.config.api_config import ApiConfig, MediaConfig
from fastovms.config.http_config import HttpConfig, SecurityConfig
from fastovms.config.model_config import RepositoryConfig
from fastovms.config.service_config import ServiceConfig
from fastovms.config.settings import ENCODER, ENGINE, FILES, MODEL_SECTIONS
from tests.cli.flags.test_flags import arguments_of

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


def test_a_line_of_ovms():
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


VLLM_LINE = """
--host 0.0.0.0 --port 8000 --api-key a --api-key b --max-model-len 4k --max-num-seqs 8 --dtype auto
--gpu-memory-utilization 0.9 --tensor-parallel-size 1 --enable-prefix-caching
--enable-chunked-prefill --root-path /x --generation-config vllm --enable-auto-tool-choice
--disable-log-requests --no-enable-log-requests --trust-remote-code --max-logprobs 5
--uvicorn-log-level info --swap-space 0
"""


def test_a_line_of_vllm():
    arguments = arguments_of(*VLLM_LINE.split())
    settings = read_flags(arguments)
    assert settings.section(SecurityConfig).api_keys == ("a", "b")
    assert settings.section(HttpConfig).root_path == "/x"
    assert settings.section(ApiConfig).max_logprobs == 5
    assert settings.only(*MODEL_SECTIONS).given == {
        ENGINE.max_model_len: 4000,
        ENGINE.max_num_seqs: 8,
        ENGINE.enable_prefix_caching: True,
        FILES.generation_config: Path("vllm"),
    }
    told = {line.partition(" is not used: ")[0] for line in unused_flags(arguments)}
    assert told == {"--gpu-memory-utilization", "--trust-remote-code", "--uvicorn-log-level"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rest_workers", "0"], "must be an integer at least 1, not '0'"),
        (["--num_streams", "0"], "must be an integer at least 1, not '0'"),
        (["--pipeline_type", "cb"], "must be AUTO, LM, VLM, LM_CB, VLM_CB or OMNI, not 'cb'"),
        (["--model_distribution_policy", "X"], "must be TENSOR_PARALLEL or PIPELINE_PARALLEL"),
        (["--kv_cache_precision", "u9"], "must be u4, u8, f16, bf16 or f32, not 'u9'"),
        (["--gpu-memory-utilization", "much"], "must be a number of shares"),
        (["--dtype", "int1"], "not 'int1'"),
        (["--file_system_poll_wait_seconds", "-1"], "must be a number of seconds, 0 or more"),
    ],
)
def test_wrong_values_of_flags_without_use(arguments, message):
    with pytest.raises(argparse.ArgumentError) as caught:
        arguments_of(*arguments)
    assert message in str(caught.value)


def test_flags_without_use_are_not_those_with_one():
    names = [flag.name for flag in (*FLAGS, *FOREIGN_FLAGS)]
    assert len(names) == len(set(names))
    assert not set(names) & set(ALIASES)
    for flag in FOREIGN_FLAGS:
        assert flag.reason or flag.neutral
