"""Tests of `fastovms/parts/adapters/graph.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.params import Adapter, BeamSearch, GenerationRequest
from fastovms.parts.adapters.files import read_adapter
from fastovms.parts.adapters.graph import (
    AdapterStack,
    LowRank,
    check_stack,
    compile_adapters,
    module_shapes,
)
from fastovms.parts.drafts.draft_model import DraftModel
from tests.adapters import (
    ALL_MODULES,
    SOME_MODULES,
    random_tensors,
    write_adapter,
)
from tests.engine import engines
from tests.engine.engines import full_engine, greedy, texts

ARCHITECTURES = Path(__file__).parents[2] / "models" / "architectures"
SHAPE = replace(SHAPES["tiny"], weight_format="fp32")
NUM_ADAPTERS = 8
NUM_TOKENS = 24
ALPHA = 6.0
CONFIG = EngineConfig(precision="exact", max_num_batched_tokens=64)


def rank_of(number: int) -> int:
    return (4, 1, 16, 3, 8, 12, 2, 7)[number - 1]


def tensors_of(number: int) -> dict[str, np.ndarray]:
    modules = SOME_MODULES if number == 2 else ALL_MODULES
    return random_tensors(SHAPE, rank=rank_of(number), seed=number, modules=modules)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_model(SHAPE, directory)
    return directory


@pytest.fixture(scope="module")
def weights(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[int, Mapping[str, LowRank]]:
    base = tmp_path_factory.mktemp("adapters")
    shapes = module_shapes(load(model_dir).graph.model)
    found = {}
    for number in range(1, NUM_ADAPTERS + 1):
        path = write_adapter(
            base / str(number), tensors_of(number), rank=rank_of(number), alpha=ALPHA
        )
        found[number] = read_adapter(path, shapes, max_rank=16).weights
    return found


def load(model_dir: Path) -> PagedModel:
    return load_model(model_dir, exact=True)


@pytest.fixture(scope="module")
def adapted(model_dir: Path, weights: Mapping[int, Mapping[str, LowRank]]) -> PagedModel:
    """The model with all adapters."""
    model, stack = load(model_dir), AdapterStack({})
    for number, pairs in weights.items():
        stack = stack.with_adapter(number, pairs)
    check_stack(weights, stack)
    model.use_for_adapters(compile_adapters(model, stack))
    return model


def adapter(number: int) -> Adapter | None:
    if not number:
        return None
    return Adapter(f"a{number}", "", number.to_bytes(32, "big"), number, 0)


def request(name: str, number: int, length: int, **params: Any) -> GenerationRequest:
    prompt = np.random.default_rng(length).integers(3, 60, length).tolist()
    asked = greedy(name, prompt, **{"max_tokens": NUM_TOKENS, "ignore_eos": True, **params})
    return replace(asked, adapter=adapter(number))


def new_engine(model: PagedModel, draft: PagedModel | None = None) -> Engine:
    """
    Args:
        draft: drafts for it.
    """
    model.allocate_cache(256)
    draft_model = None
    if draft is not None:
        assert model.vocab_size is not None
        draft_model = DraftModel(
            draft, num_token_ids=model.vocab_size, max_model_len=512, max_num_batched_tokens=256
        )
        draft_model.allocate_cache(256 * model.block_size)
    return full_engine(
        model,
        CONFIG,
        num_blocks=256,
        max_model_len=512,
        draft_model=draft_model,
        clock=lambda: 0.0,  # where steps take no time, all drafts pay
    )


def run(
    model: PagedModel, requests: list[GenerationRequest], engine: Engine | None = None
) -> dict[str, list[int]]:
    """Returns the tokens of all requests; those of a search's samples are joined."""
    found: dict[str, list[int]] = {}
    for (name, _), said in texts(engine or new_engine(model), *requests).items():
        found.setdefault(name, []).extend(said)
    return found


def merged_graph(model_dir: Path, directory: Path, weights: Mapping[str, LowRank]) -> Path:
    """Writes the graph of an exported model with an adapter merged into its weights."""
    model = ov.Core().read_model(model_dir / "openvino_model.xml")
    names = {f"__module.{prefix}{name}/": name for name in weights for prefix in ("", "model.")}
    num_merged = 0
    for node in model.get_ordered_ops():
        found = [names[start] for start in names if node.get_friendly_name().startswith(start)]
        if node.get_type_name() == "MatMul" and found:
            pair = weights[found[0]]
            change = (pair.up.T.astype(np.float64) @ pair.down).astype(np.float32)
            merged = opset13.add(node.input_value(1).get_node(), opset13.constant(change))
            node.input(1).replace_source_output(merged.output(0))
            num_merged += 1
    assert num_merged == len(weights)
    ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)
    return directory


@pytest.mark.nightly(but=("gemma3",))
@pytest.mark.parametrize("architecture", ["lfm2", "phi3-longrope", "gemma3"])
def test_adapters_of_exported_models_are_as_exact_as_merged_weights(
    tmp_path: Path, architecture: str
) -> None:
    """A hybrid model, one whose positions depend on the text's length, and one with sliding
    windows."""
    path = ARCHITECTURES / architecture
    model = load(path)
    rng = np.random.default_rng(0)
    pairs = {
        name: LowRank(
            rng.normal(0, 0.3, (4, shape.columns)).astype(np.float32),
            rng.normal(0, 0.3, (4, shape.rows)).astype(np.float32),
        )
        for name, shape in module_shapes(model.graph.model).items()
    }
    model.use_for_adapters(compile_adapters(model, AdapterStack({}).with_adapter(1, pairs)))
    merged = load(merged_graph(path, tmp_path, pairs))
    lengths = (3, 40)
    found = run(model, [request(str(length), 1, length) for length in lengths])
    expected = [request(str(length), 0, length) for length in lengths]
    assert found == run(merged, expected)
    assert found != run(model, expected)


PEFT = ARCHITECTURES.parent / "adapters"


@pytest.fixture(scope="module")
def with_peft() -> PagedModel:
    """A model of transformers with PEFT's adapters from `bench/peft_adapters.py`, with references:
    greedy tokens and log probabilities of merged weights in f32."""
    model, stack = load(ARCHITECTURES / "qwen3"), AdapterStack({})
    shapes = module_shapes(model.graph.model)
    for number, directory in enumerate(sorted(PEFT.iterdir()), 1):
        stack = stack.with_adapter(number, read_adapter(directory, shapes, max_rank=8).weights)
    model.use_for_adapters(compile_adapters(model, stack))
    return model


def test_texts_are_those_of_peft(with_peft: PagedModel) -> None:
    """With all adapters, the base model and all prompts in one batch."""
    sources = [None, *sorted(PEFT.iterdir())]
    expected = {
        f"{number} {index}": text
        for number, source in enumerate(sources)
        for index, text in enumerate(references_of(source))
    }
    assert len(expected) == 20
    with_peft.allocate_cache(256)
    engine = full_engine(with_peft, CONFIG, num_blocks=256, max_model_len=256)
    asked = [
        replace(
            greedy(
                name,
                text["prompt"],
                max_tokens=len(text["token_ids"]),
                ignore_eos=True,
                logprobs=0,
            ),
            adapter=adapter(int(name[0])),
        )
        for name, text in expected.items()
    ]
    for (name, _), outputs in engines.run(engine, *asked).items():
        assert engines.text(outputs) == expected[name]["token_ids"]
        logprobs = [one.logprob for output in outputs for one in output.logprobs]
        assert logprobs == pytest.approx(expected[name]["logprobs"], abs=1e-4)
    plain = [expected[f"0 {index}"]["token_ids"] for index in range(5)]
    for number in (1, 2, 3):
        assert [expected[f"{number} {index}"]["token_ids"] for index in range(5)] != plain


def references_of(directory: Path | None) -> list[dict[str, Any]]:
    """Returns the references of an adapter; None = of the base model."""
    path = (directory or ARCHITECTURES / "qwen3") / "reference.json"
    content = json.loads(path.read_text())
    texts: list[dict[str, Any]] = content if directory is None else content["texts"]
    return texts


SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 7},
    "drafts": {"num_assistant_tokens": 3},
    "beams": {"beam_search": BeamSearch(3)},
}


@pytest.mark.nightly(but=("drafts",))
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_crowd_of_adapters_changes_no_text(
    adapted: PagedModel, settings: dict[str, object]
) -> None:
    """Eight adapters and the base model, sixteen streams."""
    requests = [
        request(str(place), place % (NUM_ADAPTERS + 1), 5 + 7 * (place % 5), **settings)
        for place in range(16)
    ]
    alone = {one.request_id: run(adapted, [one])[one.request_id] for one in requests}
    assert run(adapted, requests) == alone
    assert alone["1"] != alone["10"]  # the same prompt length, but another prompt


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "seeded"]
)
def test_a_draft_model_changes_no_text_of_an_adapter(
    model_dir: Path, adapted: PagedModel, settings: dict[str, object]
) -> None:
    """The draft model is the base model, so that its drafts are right for the base and mostly wrong
    for adapters."""
    requests = [request(str(place), place % 4, 9 + 5 * place, **settings) for place in range(8)]
    expected = run(adapted, requests)
    engine = new_engine(adapted, load(model_dir))
    asked = [replace(one, params=replace(one.params, num_assistant_tokens=3)) for one in requests]
    assert run(adapted, asked, engine) == expected
    counters = engine.counters
    assert 0 < counters.num_accepted_tokens < counters.num_draft_tokens


def test_drafts_come_from_texts_of_the_same_adapter(adapted: PagedModel) -> None:
    """Repeated texts are drafted entirely, but not with another adapter."""
    engine = new_engine(adapted)

    def ask(name: str, number: int) -> tuple[list[int], int]:
        before = engine.counters.num_accepted_tokens
        asked = request(name, number, 40, num_assistant_tokens=3)
        text = run(adapted, [asked], engine)[name]
        return text, engine.counters.num_accepted_tokens - before

    first, num_first = ask("first", 1)
    again, num_again = ask("again", 1)
    other, num_other = ask("other", 3)
    assert first == again == run(adapted, [request("first", 1, 40)])["first"]
    assert other == run(adapted, [request("other", 3, 40)])["other"]
    assert num_again >= NUM_TOKENS // 2 > num_first + num_other


def test_cached_prefixes_are_an_adapters_own(adapted: PagedModel) -> None:
    asked = {1: request("first", 1, 100), 3: request("second", 3, 100)}
    expected = {number: run(adapted, [one])[one.request_id] for number, one in asked.items()}
    engine = new_engine(adapted)
    cached = []
    for number in (1, 3, 1, 3):
        [outputs] = engines.run(engine, asked[number]).values()
        assert engines.text(outputs) == expected[number]
        cached.append(outputs[-1].num_cached_tokens)
    assert cached[0] == cached[1] == 0 < cached[2] == cached[3]


def test_adapters_are_added_and_removed_in_any_order(
    model_dir: Path, adapted: PagedModel, weights: Mapping[int, Mapping[str, LowRank]]
) -> None:
    model = load(model_dir)
    stack = AdapterStack({}).with_adapter(3, weights[3])
    runner = compile_adapters(model, stack)
    model.use_for_adapters(runner)
    asked = {number: request(str(number), number, 30) for number in weights}
    expected = {number: run(adapted, [one]) for number, one in asked.items()}
    for step in ("+1", "+5", "-3", "+2", "-1", "+3", "-5", "-2"):
        number = int(step[1:])
        if step[0] == "+":
            stack = stack.with_adapter(number, weights[number])
        else:
            stack = stack.without(number)
        members = [member.number for member in stack.members]
        check_stack(members, stack)
        runner.use(stack)
        for member in members:
            assert run(model, [asked[member]]) == expected[member]
    assert [member.number for member in stack.members] == [3]
