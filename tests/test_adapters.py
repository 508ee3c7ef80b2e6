"""Adapters (LoRA) in a real process, as clients see them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from tests.adapters import write_random_adapter
from tests.real_server import Server, start_server, stop_server

pytestmark = pytest.mark.slow

SHAPE = replace(SHAPES["tiny"], weight_format="fp32")
NUM_ADAPTERS = 8
NAMES = ("base", *(f"a{number}" for number in range(1, NUM_ADAPTERS + 1)))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("adapters")
    write_model(SHAPE, directory / "model")
    for number in range(1, NUM_ADAPTERS + 1):
        write_random_adapter(directory / f"a{number}", SHAPE, rank=2 * number, seed=number)
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Server]:
    server = start_server(
        *(str(directory / "model"), "--served-model-name", "base", "--precision", "exact"),
        *("--state-dir", ":memory:", "--lora-modules", f"a1={directory / 'a1'}"),
        f"a2={directory / 'a2'},a3={directory / 'a3'}",
        json.dumps({"name": "a4", "path": str(directory / "a4")}),
    )
    yield server
    stop_server(server)


def ask(client: openai.OpenAI, place: int) -> str:
    answer = client.completions.create(
        model=NAMES[place % len(NAMES)],
        prompt=f"Once upon a time {place}",
        max_tokens=24,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.model == NAMES[place % len(NAMES)]
    return answer.choices[0].text


def test_sixteen_streams_of_eight_adapters_and_the_base(server: Server, directory: Path) -> None:
    for number in range(5, NUM_ADAPTERS + 1):
        name = f"a{number}"
        body = {"lora_name": name, "lora_path": str(directory / name)}
        assert server.send("POST", "/v1/load_lora_adapter", body).status == 200
    with server.client("/v1") as client:
        listed = {model.id: model.model_dump()["parent"] for model in client.models.list()}
        assert listed == {name: None if name == "base" else "base" for name in NAMES}
        alone = [ask(client, place) for place in range(16)]
        with ThreadPoolExecutor(16) as threads:
            assert list(threads.map(lambda place: ask(client, place), range(16))) == alone
        assert len(set(alone)) == 16
        unload = {"lora_name": "a8"}
        assert server.send("POST", "/v1/unload_lora_adapter", unload).status == 200
        with pytest.raises(openai.NotFoundError):
            ask(client, 8)
        body = {"lora_name": "a8", "lora_path": str(directory / "a8")}
        assert server.send("POST", "/v1/load_lora_adapter", body).status == 200
        assert ask(client, 8) == alone[8]


def test_a_bad_adapter_is_refused_at_the_start(directory: Path) -> None:
    command = [sys.executable, "-m", "fastovms", "serve", str(directory / "model"), "--port", "0"]
    command += ["--lora-modules", f"a={directory / 'model'}", "--state-dir", ":memory:"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode != 0
    assert "the adapter a cannot be loaded" in found.stderr
    assert "is not a PEFT adapter: adapter_config.json is missing" in found.stderr
