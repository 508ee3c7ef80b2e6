"""Tests of the engine against `openvino_genai.ContinuousBatchingPipeline` with the demo model,
token by token: see `tests.engine.reference`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.errors import ConfigurationError
from fastovms.params import SamplingParams
from fastovms.server_config import DEMO_MODEL
from tests.engine.engines import full_engine, text
from tests.engine.reference import EXACT, run, run_reference

NUM_BLOCKS = 200
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def model() -> PagedModel:
    model = load_model(DEMO_MODEL, properties=EXACT)
    model.allocate_cache(NUM_BLOCKS)
    return model


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(0)
    stem = [rng.randrange(20, 1000) for _ in range(70)]
    prompts = [[rng.randrange(20, 1000) for _ in range(length)] for length in (1, 31, 32, 33, 200)]
    return [*prompts, stem, [*stem, 21, 22]]


@pytest.fixture(scope="module")
def reference(prompts: list[list[int]]) -> list[list[int]]:
    return [output.generated_ids for output in run_reference(DEMO_MODEL, prompts, NUM_TOKENS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "num_blocks", "n"),
    [
        (EngineConfig(), NUM_BLOCKS, 1),
        (EngineConfig(), NUM_BLOCKS, 3),
        (EngineConfig(max_num_batched_tokens=40), NUM_BLOCKS, 1),
        (EngineConfig(enable_prefix_caching=False), NUM_BLOCKS, 1),
        (EngineConfig(max_num_seqs=2), NUM_BLOCKS, 1),
        (EngineConfig(), 12, 1),
    ],
    ids=[
        "default",
        "three samples",
        "chunked prefill",
        "no prefix cache",
        "queueing",
        "preempting",
    ],
)
def test_greedy_tokens_equal_the_reference(
    model: PagedModel,
    prompts: list[list[int]],
    reference: list[list[int]],
    config: EngineConfig,
    num_blocks: int,
    n: int,
) -> None:
    engine = full_engine(model, config, num_blocks=num_blocks, max_model_len=num_blocks * 32)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, n=n)
    for _ in range(2):  # the second round hits the prefix cache
        outputs = run(engine, prompts, params)
        for i, expected in enumerate(reference):
            for index in range(n):
                assert text(outputs[str(i), index]) == expected
    if num_blocks < NUM_BLOCKS:
        assert engine.counters.num_preemptions > 0


@pytest.mark.nightly(but=("u8",))
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["u8", "u4"])
def test_a_quantized_cache_gives_the_tokens_that_the_reference_gives_with_it(
    prompts: list[list[int]], precision: str
) -> None:
    properties = {**EXACT, "KV_CACHE_PRECISION": precision}
    model = load_model(DEMO_MODEL, properties=properties)
    model.allocate_cache(NUM_BLOCKS)
    # One after another: a block's scales depend on the steps in which its tokens were computed.
    config = EngineConfig(max_num_seqs=1, enable_prefix_caching=False, enable_prompt_lookup=False)
    engine = full_engine(model, config, num_blocks=NUM_BLOCKS, max_model_len=NUM_BLOCKS * 32)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = run(engine, prompts, params)
    expected = run_reference(DEMO_MODEL, prompts, NUM_TOKENS, properties=properties, max_num_seqs=1)
    assert [text(outputs[str(i), 0]) for i in range(len(prompts))] == [
        output.generated_ids for output in expected
    ]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [7, 256])
def test_prompt_log_probabilities_equal_those_of_generation(
    model: PagedModel, prompts: list[list[int]], budget: int
) -> None:
    """A generated text is scored as a prompt: its tokens have the same probabilities."""
    config = EngineConfig(max_num_batched_tokens=budget)
    engine = full_engine(model, config, num_blocks=NUM_BLOCKS, max_model_len=2048)
    prompt = prompts[4][:50]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=3)
    generated = run(engine, [prompt], params)["0", 0]
    scoring = SamplingParams(max_tokens=1, prompt_logprobs=3, n=2)
    scored_prompt = [*prompt, *text(generated)]
    outputs = run(engine, [scored_prompt, prompts[0]], scoring)
    scores = outputs["0", 0][0].prompt_logprobs
    assert scores[0] is None
    assert len(scores) == len(scored_prompt)
    assert [score.token_id for score in scores[1:] if score] == scored_prompt[1:]
    logprobs = [entry for output in generated for entry in output.logprobs]
    for score, expected in zip(scores[len(prompt) :], logprobs, strict=True):
        assert score is not None
        assert score.logprob == pytest.approx(expected.logprob, abs=1e-3)
        assert list(score.top_token_ids) == list(expected.top_token_ids)
    assert list(outputs["1", 0][0].prompt_logprobs) == [None]
    assert not outputs["0", 1][0].prompt_logprobs


@pytest.mark.slow
def test_a_refused_kv_precision_falls_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("KV_CACHE_PRECISIONS", "EXACT_KV_CACHE_PRECISIONS"):
        monkeypatch.setattr(f"fastovms.engine.model.compilation.{name}", ("i3", "u8"))
    assert load_model(DEMO_MODEL).block_size == 32
    assert "CPU does not support f32, i3 cache" in caplog.text


@pytest.mark.slow
def test_a_precision_that_the_operator_chose_does_not_fall_back() -> None:
    with pytest.raises(ConfigurationError, match="CPU cannot run the model"):
        load_model(DEMO_MODEL, properties={"KV_CACHE_PRECISION": "i3"})


def test_a_broken_model_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("<net")
    with pytest.raises(ConfigurationError, match="cannot read the model"):
        load_model(tmp_path)
