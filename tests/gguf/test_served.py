"""Tests of a GGUF file from the command line to the openai client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from bench.common.numpy_decoder import NumpyDecoder
from bench.random_models.gguf_decoder import TOKENS, GgufModel, write_model
from tests.real_server import start_server, stop_server

PROMPT = "hell there"
MODEL = GgufModel(
    types=(Type.Q4_K, Type.Q6_K),
    biases=("attn_q", "attn_k", "attn_v"),
    settings={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "tiny-Q4_K_M.gguf"
    write_model(path, MODEL)
    return path


def test_answers_of_a_served_gguf_file_equal_its_weights(gguf_file: Path) -> None:
    server = start_server(str(gguf_file), "--cache-dir", str(gguf_file.parent / "cache"))
    try:
        with server.client("/v1") as client:
            assert [model.id for model in client.models.list()] == ["tiny-Q4_K_M"]
            completion = client.completions.create(
                model="tiny-Q4_K_M", prompt=PROMPT, max_tokens=8, temperature=0, logprobs=1,
                extra_body={"return_tokens_as_token_ids": True, "ignore_eos": True},
            )  # fmt: skip
            chat = client.chat.completions.create(
                model="tiny-Q4_K_M",
                messages=[{"role": "user", "content": PROMPT}],
                max_tokens=3,
            )
    finally:
        stop_server(server)
    assert chat.usage is not None
    assert chat.usage.completion_tokens > 0
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    generated = [int(token.removeprefix("token_id:")) for token in logprobs.tokens or ()]
    assert len(generated) == 8
    prompt = [1, TOKENS.index("hell"), TOKENS.index("\u0120t"), TOKENS.index("he")]
    prompt += [TOKENS.index(letter) for letter in "re"]
    expected = NumpyDecoder(gguf_file).log_probabilities([*prompt, *generated])
    expected = expected[len(prompt) - 1 : -1]
    np.testing.assert_allclose(logprobs.token_logprobs, expected.max(axis=1), atol=1e-3)
    assert expected.argmax(axis=1).tolist() == generated


def test_serving_an_unsupported_file_fails_with_one_line(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", GgufModel(settings={"expert_count": 8}))
    command = [sys.executable, "-m", "fastovms", "serve", str(tmp_path / "m.gguf"), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    (refusal,) = (line for line in ended.stderr.splitlines() if " INFO " not in line)
    assert "m.gguf cannot be served: the tensor blk.0.ffn_gate_exps.weight" in refusal
