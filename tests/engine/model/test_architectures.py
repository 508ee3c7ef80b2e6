"""Tests that tiny models of real architectures generate transformers' texts: alone, in a batch,
with cached prefixes and with drafts.

`bench/architectures/export.py --narrow --vocab-size 128 --num-prompts 5` has made the models and
their references: greedy tokens and log probabilities in float32.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.compilation import ExportedModel
from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.paging import applies_sliding_window
from fastovms.parts.comparison.graph_comparison import largest_difference
from fastovms.parts.drafts.draft_model import DraftModel
from tests.engine.engines import full_engine, greedy, run, text

MODELS = Path(__file__).parents[2] / "models" / "architectures"
NAMES = sorted(path.name for path in MODELS.iterdir())
MAX_MODEL_LEN = 160
NUM_BLOCKS = 64
LOGPROB_TOLERANCE = 1e-4

SWITCH_LENS = {"phi3-longrope": 64}
EXACT_LENS = {"llama4-attention-chunks": 24}
WINDOWED = {"gemma3", "gpt_neo-window", "mistral-window", "qwen2-window"}

PLAIN = EngineConfig(enable_prefix_caching=False, enable_prompt_lookup=False)
WAYS = {
    "alone": EngineConfig(enable_prefix_caching=False, enable_prompt_lookup=False, max_num_seqs=1),
    "in a crowd": PLAIN,
    "in chunks": EngineConfig(
        enable_prefix_caching=False, enable_prompt_lookup=False, max_num_batched_tokens=40
    ),
    "over cached prefixes": EngineConfig(enable_prompt_lookup=False),
    "with drafts": PLAIN,
}


class Generated(NamedTuple):
    token_ids: list[int]
    logprobs: list[float]


@pytest.fixture(scope="module", params=NAMES)
def files(request: pytest.FixtureRequest) -> ExportedModel:
    return ExportedModel(MODELS / request.param, exact=True, max_model_len=MAX_MODEL_LEN)


@pytest.fixture(scope="module")
def model(files: ExportedModel) -> PagedModel:
    model = files.compile(files.choices)[1]
    model.allocate_cache(NUM_BLOCKS)
    return model


def references(files: ExportedModel) -> list[dict[str, Any]]:
    """Returns the references within the length with which the model is served."""
    content: list[dict[str, Any]] = json.loads((files.model_dir / "reference.json").read_text())
    exact = files.graph.max_exact_len
    limit = MAX_MODEL_LEN if exact is None else exact.num_tokens
    return [_cut(one, limit) for one in content if len(one["prompt"]) < limit]


def _cut(reference: dict[str, Any], limit: int) -> dict[str, Any]:
    num_tokens = limit - len(reference["prompt"])
    generated = {name: reference[name][:num_tokens] for name in ("token_ids", "logprobs")}
    return reference | generated


def test_special_inputs_of_a_graph_are_found(files: ExportedModel) -> None:
    name = files.model_dir.name
    assert files.graph.rope_switch_len == SWITCH_LENS.get(name)
    exact = files.graph.max_exact_len
    assert (None if exact is None else exact.num_tokens) == EXACT_LENS.get(name)
    assert applies_sliding_window(files.graph.model) is (name in WINDOWED)


@pytest.mark.nightly(
    but=(
        "[qwen3]",
        "[gemma3]",
    )
)
def test_paged_graph_computes_the_logits_of_the_exported_graph(files: ExportedModel) -> None:
    assert largest_difference(files) < LOGPROB_TOLERANCE


@pytest.mark.nightly(but=("[qwen3-",))
@pytest.mark.parametrize("way", WAYS)
def test_texts_are_those_of_transformers(files: ExportedModel, model: PagedModel, way: str) -> None:
    expected = references(files)
    draft_model = None
    if way == "with drafts":
        draft_model = DraftModel(
            files.compile(files.choices)[1],
            num_token_ids=128,
            max_model_len=model.rope_switch_len or MAX_MODEL_LEN,
            max_num_batched_tokens=256,
        )
        draft_model.allocate_cache(NUM_BLOCKS * model.block_size)
    engine = full_engine(
        model,
        WAYS[way],
        num_blocks=NUM_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        draft_model=draft_model,
    )
    for _ in range(2 if way == "over cached prefixes" else 1):
        found = generate(engine, expected, 3 if draft_model else None)
    for reference, (token_ids, logprobs) in zip(expected, found, strict=True):
        assert token_ids == reference["token_ids"]
        assert logprobs == pytest.approx(reference["logprobs"], abs=LOGPROB_TOLERANCE)
    if way == "over cached prefixes":
        has_blocks = any(len(one["prompt"]) > model.block_size for one in expected)
        assert bool(engine.counters.num_prefix_cache_hits) is has_blocks
    if way == "with drafts":
        assert engine.counters.num_accepted_tokens


def generate(
    engine: Engine, expected: list[dict[str, Any]], num_drafted: int | None
) -> list[Generated]:
    asked = [
        greedy(
            str(number),
            array("q", one["prompt"]),
            max_tokens=len(one["token_ids"]),
            ignore_eos=True,
            logprobs=0,
            num_assistant_tokens=num_drafted,
        )
        for number, one in enumerate(expected)
    ]
    outputs = run(engine, *asked)
    of_each = [outputs[str(number), 0] for number in range(len(expected))]
    return [
        Generated(text(of), [one.logprob for output in of for one in output.logprobs])
        for of in of_each
    ]
