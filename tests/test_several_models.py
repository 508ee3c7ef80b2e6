"""Several models in one real process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import openai
import pytest

from fastovms.cli.main import main
from fastovms.server_config import DEMO_MODEL


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    flags = ["--port", "0", "--max-model-len", "1k", "--max-num-seqs", "4"]
    models = ["--model", f"one={DEMO_MODEL}", "--model", f"org/two={DEMO_MODEL}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fastovms", "serve", *models, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        greeting = [process.stdout.readline() for _ in range(4)]
        assert greeting[1:3] == [
            "model one: context of 1000 tokens\n",
            "model org/two: context of 1000 tokens\n",
        ]
        yield greeting[0].split()[-1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_model_field_selects_one_of_two_models(url, prefix):
    with openai.OpenAI(base_url=url + prefix, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["one", "org/two"]
        assert client.models.retrieve("org/two").id == "org/two"
        texts = set()
        for name in ("one", "org/two"):
            answer = client.completions.create(
                model=name, prompt="Once upon a time", temperature=0, max_tokens=8
            )
            assert answer.model == name
            texts.add(answer.choices[0].text)
        assert len(texts) == 1
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model=DEMO_MODEL.name, prompt="a")
        if prefix == "/v1":
            lengths = [model.max_model_len for model in client.models.list()]
            assert lengths == [1000, 1000]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", f"a={DEMO_MODEL}", "--model", f"a={DEMO_MODEL}"], "2 models have the name a"),
        (["--model", str(DEMO_MODEL), "--model", str(DEMO_MODEL)], "2 models have the name"),
        (["--model", "a=/nowhere"], "model directory /nowhere does not exist"),
        (["--model", "a="], "--model must be MODEL or NAME=MODEL, not 'a='"),
        (["--model", "a=b", "c"], "MODEL cannot be used with --model"),
        (["--model", "a=b", "--model", "c", "--served-model-name", "x"], "for one model, not 2"),
        (["--max-model-len", "100k"], "--max-model-len must be at most"),
        (["--model-name", ""], "argument --model-name: must not be empty"),
    ],
)
def test_contradictory_model_flags_are_refused(capfd, arguments, message):
    try:
        code = main(["serve", *arguments])
    except SystemExit as exit:
        code = exit.code
    output = capfd.readouterr()
    assert (code, output.err.count("\n")) == (2, 1), output.err
    assert message in output.err
