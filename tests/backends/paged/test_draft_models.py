"""Tests of `fastovms/parts/drafts/files.py`: draft models and heads with their target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from bench.models import write_draft_head, write_model, write_own_head
from bench.random_models.draft_head_graph import OwnHeadGraph
from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import SHAPES, Shape
from bench.random_models.weights import Node
from fastovms.app.paged import load_paged
from fastovms.backends.model_files import read_model_info
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.paging import read_paged_graph
from fastovms.engine.step_costs import StepCosts
from fastovms.errors import ConfigurationError
from fastovms.params import Grammar, GrammarKind, SamplingParams
from fastovms.parts.drafts.draft_model import DraftModel
from fastovms.parts.drafts.files import (
    DraftFiles,
    fit_draft_files,
    load_draft_model,
    read_draft_files,
)
from fastovms.server_config import DEMO_MODEL
from tests.engine.engines import greedy, texts

LFM2 = Path(__file__).parents[2] / "models" / "architectures" / "lfm2"


@pytest.fixture(scope="module")
def draft_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("draft")
    write_model(SHAPES["tiny"], directory)
    return directory


def test_both_caches_share_the_memory(draft_dir: Path) -> None:
    info = read_model_info(DEMO_MODEL)

    def num_blocks(config: EngineConfig) -> int:
        backend = load_paged(DEMO_MODEL, info, config)
        return backend.engine.blocks.num_blocks

    alone = num_blocks(EngineConfig(cache_size=0.01))
    assert 0.5 * alone < num_blocks(EngineConfig(cache_size=0.01, draft_model=draft_dir)) < alone


def num_planned(draft: DraftModel) -> int:
    """Returns the first draft's length if a step with more rows takes as long as one without."""
    costs = StepCosts()
    for num_rows in (1, 1, 1, 9, 9, 9):
        costs.learn(num_decodes=1, num_rows=num_rows, num_prefill_tokens=0, seconds=0.01)
    policy = draft.new_policy(SamplingParams())
    return policy.plan(10, costs, num_sequences=1, max_tokens=8).num_tokens


def test_cost_of_a_draft_model_follows_its_weights(draft_dir: Path) -> None:
    info = read_model_info(DEMO_MODEL)
    draft = load_draft_model(DraftFiles(draft_dir, info), DEMO_MODEL, info, EngineConfig())
    assert num_planned(draft) > 0
    twin = load_draft_model(DraftFiles(DEMO_MODEL, info), DEMO_MODEL, info, EngineConfig())
    assert num_planned(twin) == 0


def test_a_missing_directory_is_found_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastovms.app.paged.read_files", None)
    config = EngineConfig(draft_model=tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="nowhere does not exist"):
        load_paged(DEMO_MODEL, read_model_info(DEMO_MODEL), config)


def test_another_vocabulary_is_a_configuration_error(
    draft_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabularies = {draft_dir: {b"a": 0, b"b": 1}, DEMO_MODEL: {b"a": 0, b"c": 1, b"b": 2}}
    monkeypatch.setattr("fastovms.parts.drafts.files._read_vocabulary", vocabularies.__getitem__)
    with pytest.raises(ConfigurationError, match="they differ in 2 tokens, such as 'c'"):
        read_draft_files(draft_dir, DEMO_MODEL, read_model_info(DEMO_MODEL))


def test_a_hybrid_model_cannot_draft(tmp_path: Path) -> None:
    for directory in (LFM2, DEMO_MODEL):
        for path in directory.iterdir():
            if not (tmp_path / path.name).exists():
                (tmp_path / path.name).symlink_to(path)
    info = read_model_info(DEMO_MODEL)
    draft = read_draft_files(tmp_path, DEMO_MODEL, info)
    with pytest.raises(ConfigurationError, match=r"recurrent or hybrid model, which cannot draft"):
        load_draft_model(draft, DEMO_MODEL, info, EngineConfig())


# Draft heads: all forms of exported files.


TARGET = replace(SHAPES["tiny"], num_hidden_layers=8, vocab_size=1536)
HEAD = replace(TARGET, num_hidden_layers=1)
TOKEN_IDS = np.arange(0, 1536, 3)


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("target")
    write_model(TARGET, directory)
    return directory


@pytest.fixture(scope="module")
def head_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    write_draft_head(HEAD, directory, TOKEN_IDS)
    return directory


def rewritten(change: Callable[[ov.Model], None]) -> Callable[[Path], None]:
    """Returns a function that writes a head with a changed graph."""

    def write(directory: Path) -> None:
        write_draft_head(HEAD, directory, TOKEN_IDS)
        graph = directory / "openvino_model.xml"
        model = ov.Core().read_model(graph.read_bytes(), (graph.with_suffix(".bin")).read_bytes())
        change(model)
        ov.save_model(model, graph, compress_to_fp16=False)

    return write


def truncated(directory: Path) -> None:
    write_draft_head(HEAD, directory, TOKEN_IDS)
    weights = directory / "openvino_model.bin"
    weights.write_bytes(weights.read_bytes()[:1000])


def without(name: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        write_draft_head(HEAD, directory, TOKEN_IDS)
        (directory / name).unlink()

    return write


def head(shape: Shape = HEAD, token_ids: Any = TOKEN_IDS, **options: Any) -> Callable[[Path], None]:
    return lambda directory: write_draft_head(shape, directory, token_ids, **options)


def of_architecture(name: str) -> Callable[[Path], None]:
    return head(config={"architectures": [name]})


WIDE = {"config": {"target_hidden_size": 64}}
"""A head with another width may be trained for the target, according to its files."""


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (without("config.json"), "it has no openvino_tokenizer.xml"),
        (without("openvino_model.bin"), "it has no openvino_model.bin"),
        (truncated, "Incorrect weights in bin file"),
        (of_architecture("EagleLlamaForCausalLM"), "head of the architecture eaglellama"),
        (
            of_architecture("DFlashDraftModel"),
            "only heads of EAGLE-3 and MTP and whole models can draft",
        ),
        (of_architecture("LlamaForCausalLM"), "it has no openvino_tokenizer.xml"),
        (head(replace(HEAD, vocab_size=1700)), "with vocab_size 1700, but .* has vocab_size 1536"),
        (head(replace(HEAD, hidden_size=96)), "with hidden_size 96, but .* has hidden_size 64"),
        (head(target_size=96), "made for hidden states of 96 numbers, and the model's have 64"),
        (
            head(replace(HEAD, hidden_size=96), target_size=64, **WIDE),
            "the hidden states of the head have 96 numbers: the head cannot take the embeddings",
        ),
        (head(has_table=False), "the head has no table d2t, .* has 512 tokens and the model 1536"),
        (head(token_ids=np.arange(512)), "the table d2t of the head is empty"),
        (
            head(token_ids=TOKEN_IDS + 10),
            "the table d2t of the head names token 1543, .* has 1536 tokens",
        ),
        (head(token_ids=TOKEN_IDS - 10), "the table d2t of the head names token"),
        (
            rewritten(lambda model: model.set_rt_info("1, 2, 7", ["hidden_layers_list"])),
            "of the 8 layers of the model the last that can be used is 6",
        ),
        (
            rewritten(lambda model: model.set_rt_info("1, x", ["hidden_layers_list"])),
            "must be 3 numbers of layers, not '1, x'",
        ),
        (
            rewritten(lambda model: model.input("hidden_states").set_names({"other"})),
            "the head has no input named hidden_states",
        ),
        (
            rewritten(lambda model: model.input("input_ids").set_names({"inputs_embeds"})),
            "the head takes embeddings instead of tokens",
        ),
        (
            rewritten(lambda model: model.output("logits").set_names({"other"})),
            "the head has no output named logits",
        ),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    target_dir: Path, tmp_path: Path, write: Callable[[Path], None], reason: str
) -> None:
    directory = tmp_path / "the-head"
    write(directory)
    target = read_model_info(target_dir)
    graph = read_paged_graph(ov.Core(), target_dir)
    with pytest.raises(ConfigurationError, match=rf"(?s)the-head.*{reason}|{reason}"):
        fit_draft_files(read_draft_files(directory, target_dir, target), graph, 2048)
    assert len(graph.model.outputs) == 1


def other_name(model: ov.Model, port: Any) -> ov.Model:
    port.set_names({"other"})
    return model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: other_name(m, m.input("inputs_embeds")), "no input or output named inputs_emb"),
        (lambda m: other_name(m, m.output(0)), "has no input or output named last_hidden_state"),
        (
            lambda _: OwnHeadGraph(replace(HEAD, hidden_size=96)).build(),
            "of 96 numbers, .* have 64",
        ),
    ],
)
def test_an_own_head_that_does_not_fit_is_refused(
    target_dir: Path, tmp_path: Path, change: Callable[[ov.Model], ov.Model], reason: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = change(OwnHeadGraph(HEAD).build())
    ov.save_model(model, tmp_path / "openvino_mtp_model.xml", compress_to_fp16=False)
    draft = read_draft_files(tmp_path, target_dir, read_model_info(target_dir))
    graph = read_paged_graph(ov.Core(), target_dir)
    with pytest.raises(ConfigurationError, match=reason):
        fit_draft_files(draft, graph, 2048)
    assert len(graph.model.outputs) == 1
    (tmp_path / "openvino_mtp_model.bin").unlink()
    with pytest.raises(ConfigurationError, match=r"it has no openvino_mtp_model\.bin"):
        read_draft_files(tmp_path, target_dir, read_model_info(target_dir))


def test_a_model_of_few_layers_has_no_heads(tmp_path: Path, head_dir: Path) -> None:
    write_model(replace(TARGET, num_hidden_layers=6), tmp_path)
    draft = read_draft_files(head_dir, tmp_path, read_model_info(tmp_path))
    with pytest.raises(ConfigurationError, match="has 6 layers: it must have at least 7"):
        fit_draft_files(draft, read_paged_graph(ov.Core(), tmp_path), 2048)


# Texts with a draft head equal those without.


class Texts:
    """Runs requests on a backend's engine."""

    def __init__(self, model_dir: Path, head_dir: Path | None, config: EngineConfig) -> None:
        config = replace(config, draft_model=head_dir, enable_prompt_lookup=False)
        backend = load_paged(model_dir, read_model_info(model_dir), config)
        self.engine: Engine = backend.engine
        self.grammars = backend._grammars

    def of(self, prompts: list[list[int]], **params: Any) -> dict[tuple[str, int], list[int]]:
        params = {"max_tokens": 24, **params}
        asked = [greedy(str(index), prompt, **params) for index, prompt in enumerate(prompts)]
        return texts(self.engine, *asked)


def prompts_of(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(20, 1000, length).tolist() for length in lengths]


@pytest.mark.nightly(but=("eagle3-auto", "own of a hybrid model-auto"))
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["auto", "exact"])
@pytest.mark.parametrize("kind", ["eagle3", "own", "own of a hybrid model"])
def test_a_random_head_changes_no_text(
    target_dir: Path, head_dir: Path, tmp_path: Path, kind: str, precision: str
) -> None:
    if kind != "eagle3":
        shape = replace(SHAPES["tiny" if kind == "own" else "tiny-lfm2"], vocab_size=1536)
        target_dir = head_dir = tmp_path
        write_model(shape, tmp_path)
        write_own_head(shape, tmp_path)
    config = EngineConfig(precision=precision, max_num_batched_tokens=128)
    plain, drafted = (Texts(target_dir, head, config) for head in (None, head_dir))
    grammar = Grammar(GrammarKind.REGEX, "[a-c]{4} [0-9]{8}", param="p")
    for params in (
        {"ignore_eos": True},
        {"ignore_eos": True, "temperature": 1, "seed": 1, "n": 2},
        {"ignore_eos": True, "presence_penalty": 1.0, "repetition_penalty": 1.3},
        {"grammar": grammar},
    ):
        prompts = prompts_of(1, 2, 31, 33, 200)
        for number in (4, None):  # the second time with cached prefixes
            expected = plain.of(prompts, **params)
            found = drafted.of(prompts, **params, num_assistant_tokens=number)
            assert found == expected, params
    counters = drafted.engine.counters
    assert counters.num_draft_tokens > 500
    assert counters.num_accepted_tokens < 0.1 * counters.num_draft_tokens
    assert counters.num_prefix_cache_hits > 0


# A target whose next token depends only on the last one, and a head that knows this rule.


class LastTokenGraph(LlamaGraph):
    """Makes the token `next_ids[t]` most likely after the token t. No layer adds anything."""

    def __init__(
        self, shape: Shape, embeddings: NDArray[np.float32], next_ids: NDArray[np.int64]
    ) -> None:
        super().__init__(shape, shape.vocab_size, 0)
        self._embeddings = embeddings
        self._projection = np.empty_like(embeddings)
        self._projection[next_ids] = embeddings

    def _embedding(self) -> Node:
        table = ops.constant(self._embeddings, name="model.embed_tokens.weight")
        return ops.gather(table, ops.convert(self._input_ids, np.int32), ops.constant(np.int64(0)))

    def _head(self, hidden: Node) -> Node:
        return ops.matmul(hidden, ops.constant(self._projection, name="lm_head"), False, True)

    def _residual(self, inputs: Node, columns: int, gain: float, name: str) -> Node:
        nothing = np.zeros((self._shape.hidden_size, columns), np.float32)
        is_transposed = inputs.get_output_partial_shape(0)[1].is_static
        matrix = ops.constant(nothing, name=f"{name}.weight")
        return ops.matmul(inputs, matrix, is_transposed, True)

    def _gamma(self, size: int) -> NDArray[np.float32]:
        return np.ones(size, np.float32)


def write_pair(target_dir: Path, head_dir: Path) -> None:
    """Writes a target and its head, which knows only the even tokens of the text. Embeddings
    consist of 1 and -1, so that their norm does not change them. The head attends only to the
    current pair of tokens: it subtracts the first token's embedding from its hidden state and adds
    the second one's. If both are in one directory, the target is a hybrid model, and its own head
    knows the rule of the last token."""
    size = 128
    is_own = head_dir == target_dir
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": size // 2}
    shape = replace(TARGET, hidden_size=size, **heads, convolutions=(0, 2) if is_own else ())
    rng = np.random.default_rng(0)
    embeddings = rng.choice(np.array([-1, 1], np.float32), (shape.vocab_size, size))
    even = np.arange(0, shape.vocab_size, 2)
    next_ids = np.arange(shape.vocab_size)
    cycle = rng.permutation(even)
    next_ids[cycle] = np.roll(cycle, -1)
    write_model(shape, target_dir)
    ov.save_model(
        LastTokenGraph(shape, embeddings, next_ids).build(),
        target_dir / "openvino_model.xml",
        compress_to_fp16=False,
    )
    one = np.eye(size, dtype=np.float32)
    nothing = np.zeros((size, shape.intermediate_size), np.float32)
    if is_own:
        weights = {"fc": np.concatenate([one, 0 * one], 1), "o_proj": 0 * one, "down_proj": nothing}
        write_own_head(shape, head_dir, weights=weights, has_gammas=False)
        return
    projection = np.empty_like(embeddings)
    projection[next_ids] = embeddings
    weights = {
        "fc": np.concatenate([one, one, one], 1) / 3,
        "q_proj": 30 * np.concatenate([one, one], 1),
        "k_proj": np.concatenate([one, one], 1),
        "v_proj": np.concatenate([one, -one], 1),
        "o_proj": one,
        "down_proj": nothing,
        "lm_head": projection[even],
    }
    write_draft_head(
        replace(shape, num_hidden_layers=1), head_dir, even, weights=weights, has_gammas=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("head_name", ["head", "target"], ids=["eagle3", "own of a hybrid model"])
def test_a_head_that_knows_the_rule_is_accepted(tmp_path: Path, head_name: str) -> None:
    write_pair(tmp_path / "target", tmp_path / head_name)
    prompts = [[2 * token_id for token_id in prompt] for prompt in prompts_of(3, 40, 70)]
    prompts = [[token_id % 1536 for token_id in prompt] for prompt in prompts]
    config = EngineConfig(max_num_batched_tokens=64)
    plain, drafted = (Texts(tmp_path / "target", h, config) for h in (None, tmp_path / head_name))
    for _ in range(2):
        expected = plain.of(prompts, ignore_eos=True, max_tokens=61)
        found = drafted.of(prompts, ignore_eos=True, max_tokens=61, num_assistant_tokens=5)
        assert found == expected
    counters = drafted.engine.counters
    assert counters.num_accepted_tokens > 0.98 * counters.num_draft_tokens
    assert counters.num_steps < 0.3 * plain.engine.counters.num_steps
