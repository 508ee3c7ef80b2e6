"""Tests of `fastovms/parts/embeddings/pair_form.py` and of the scores of pairs with a template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
import pytest

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from fastovms.backends.engine_thread import ActiveEngines, ComputeTurn
from fastovms.config import EngineConfig
from fastovms.errors import InvalidField
from fastovms.params import Task
from fastovms.parts.embeddings.embeddings import EncodingCall
from fastovms.parts.embeddings.pair_form import PairForm, answer_ids, find_pair_form
from fastovms.parts.embeddings.rerank import Pair, PairOptions, PairTexts, score_pairs
from fastovms.parts.embeddings.served import ServedEncoder, load, read_info
from fastovms.server_config import ModelConfig
from fastovms.text.template_files import compile_template
from tests.api.encoder_api import served_encoder

CARD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n",
    "<Instruct>: {}\n<Query>: {}\n<Document>: {}",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
"""The prompt in the model card of Qwen3-Reranker: before a pair, the pair, and after it."""

WEB = "Given a web search query, retrieve relevant passages that answer the query"
TEMPLATE = """{% for m in messages %}{{ m["role"] }}={{ m.content }};{% endfor %}
{#- "query" 'document' -#}"""
QWEN3 = {"model_type": "qwen3"}


def joined(form: PairForm | None, instruct: str | None = None) -> str:
    assert form is not None
    before, between, after = form.fixed_texts(instruct)
    return f"{before}q{between}d{after}"


def test_qwen3_without_a_template_of_pairs_has_the_form_of_its_card(tmp_path, caplog):
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    before, pair, after = CARD
    form = find_pair_form(tmp_path, QWEN3, None)
    assert joined(form) == before + pair.format(WEB, "q", "d") + after
    assert joined(form, "Find code") == before + pair.format("Find code", "q", "d") + after
    assert not caplog.records
    assert find_pair_form(tmp_path, {"model_type": "gemma"}, None) is None
    assert "joined as they are" in caplog.text


def test_template_with_the_roles_of_a_pair_is_the_models(tmp_path):
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "reranker.jinja").write_text(TEMPLATE)
    assert joined(find_pair_form(tmp_path, QWEN3, None)) == "query=q;document=d;"
    settings = {"prompts": {"web": "Find"}, "default_prompt_name": "web"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert joined(find_pair_form(tmp_path, {}, None)) == "system=Find;query=q;document=d;"
    given = find_pair_form(tmp_path, {}, "[{{ messages[1].content }}|{{ messages[2].content }}]")
    assert joined(given) == "[q|d]"


def test_instruction_with_a_placeholder_of_the_form_is_refused():
    form = PairForm(compile_template(TEMPLATE), {})
    with pytest.raises(InvalidField, match="instruct must not"):
        form.fixed_texts("\ue000")


async def scores_of(served: ServedEncoder, queries, documents, **options) -> np.ndarray:
    names = [[f"{side}[{i}]" for i in range(9)] for side in "qd"]
    pairs = [Pair(0, i) for i in range(len(documents))]
    call = EncodingCall(served, client="me", priority=0, log_fields={})
    found = await score_pairs(
        call,
        PairTexts(queries, documents, names[0][: len(queries)], names[1][: len(documents)]),
        pairs,
        PairOptions(served.info.max_model_len, **options),
    )
    return found.scores


async def test_prompt_is_kept_whole_where_a_text_is_cut():
    form = PairForm(compile_template("<{{ messages[0].content }} | {{ messages[1].content }}>"), {})
    served = served_encoder(Task.RERANK, joins_pairs=True, max_model_len=16)
    served = replace(served, form=form)
    await scores_of(served, ["q"], ["a" * 30], truncates=True)
    await scores_of(served, ["q"], ["a" * 12], chunks=True)
    await scores_of(served, ["q" * 30], ["a" * 30], truncates=True)
    await scores_of(served, ["<q | "], ["d>"])  # the client has formatted the pair itself
    prompts = [
        bytes(text.token_ids[text.token_ids < 256].astype(np.uint8))
        for encoded, _ in served.backend.encoded
        for text in encoded
    ]
    # A space before a document is part of its first token, and therefore of its first chunk.
    assert prompts == [
        b"<q | aaaaaaaaaa>",
        *(b"<q | aaaaaaaaaa>", b"<q |aa>"),
        b"<qqqqq | aaaaaa>",
        b"<q | d>",
    ]
    served.tokenizing.close()


@pytest.fixture(scope="module")
def reranker(tmp_path_factory) -> Path:
    """Returns a random decoder of Qwen3's architecture whose answers are two tokens."""
    directory = tmp_path_factory.mktemp("reranker")
    write_model(SHAPES["tiny-qwen3"], directory)
    (directory / "1_LogitScore").mkdir()
    ids = {"true_token_id": 60, "false_token_id": 76}
    (directory / "1_LogitScore" / "config.json").write_text(json.dumps(ids))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **QWEN3}))
    return directory


def card_score(directory: Path, instruct: str, query: str, document: str) -> float:
    """Computes a score with the program of the model card."""
    tokenizer = openvino_genai.Tokenizer(directory)
    ids: list[int] = []
    for text in (CARD[0], CARD[1].format(instruct, query, document), CARD[2]):
        ids += tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
    core = ov.Core()
    model = core.compile_model(
        directory / "openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    length = len(ids)
    given = {
        "input_ids": np.array([ids]),
        "attention_mask": np.ones((1, length), np.int64),
        "position_ids": np.arange(length)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    logits = model.create_infer_request().infer(given)["logits"][0, -1]
    no, yes = (np.exp(np.float64(logits[id])) for id in (76, 60))
    return yes / (yes + no)


@pytest.mark.parametrize("instruct", [None, "Find the sentence that goes on"])
async def test_scores_are_those_of_the_cards_program(reranker, instruct):
    assert answer_ids(reranker) == {b"no": 76, b"yes": 60}
    engine = EngineConfig(plugin_config={"INFERENCE_PRECISION_HINT": "f32"})
    model = ModelConfig(reranker, ("m",), engine)
    closes = []
    served = load(model, read_info(reranker, name="m"), ComputeTurn(ActiveEngines()), closes)
    served.backend.start()
    query, documents = "Where is the river?", ["The river is here", "a", "Once upon a time\n\nthey"]
    try:
        found = await scores_of(served, [query], documents, instruct=instruct)
    finally:
        await served.backend.close()
        for close in closes:
            close()
    wanted = [card_score(reranker, instruct or WEB, query, document) for document in documents]
    assert len({round(score, 2) for score in wanted}) == 3
    np.testing.assert_allclose(found, wanted, atol=1e-4)
