"""`/tokenize` and `/detokenize` with models of embeddings and rerankers."""

from __future__ import annotations

import pytest

from fastovms.encoding import Task
from tests.api.conftest import Api
from tests.api.encoder_api import CLS, SEP, EncoderApi, served_encoder

HI = [104, 105]


@pytest.fixture
def make_encoder_api():
    made = []

    def make(task: Task = Task.EMBEDDINGS, *, has_detokenizer: bool = True) -> Api:
        made.append(EncoderApi(served_encoder(task, has_detokenizer=has_detokenizer)))
        return made[-1]

    yield make
    for api in made:
        api.close()


@pytest.mark.parametrize("task", [Task.EMBEDDINGS, Task.RERANK])
@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        (
            "/tokenize",
            {"prompt": "hi"},
            {"count": 4, "max_model_len": 64, "tokens": [CLS, *HI, SEP], "token_strs": None},
        ),
        (
            "/v1/tokenize",
            {"prompt": "hi", "add_special_tokens": False, "return_token_strs": True},
            {"count": 2, "max_model_len": 64, "tokens": HI, "token_strs": ["h", "i"]},
        ),
        ("/v1/detokenize", {"tokens": [CLS, *HI]}, {"prompt": "[CLS]hi"}),
        ("/v3/tokenize", {"text": "hi"}, {"tokens": [CLS, *HI, SEP]}),
        ("/v3/tokenize", {"text": ["hi"], "add_special_tokens": False}, {"tokens": HI}),
        (
            "/v3/tokenize",
            {"text": ["", "hi"], "pad_to_max_length": True, "padding_side": "right"},
            {"tokens": [[CLS, SEP, 0, 0], [CLS, *HI, SEP]]},
        ),
        ("/v3/tokenize", {"text": ["hi", "h"], "max_length": 2}, {"tokens": [[CLS, 104]] * 2}),
    ],
)
async def test_answers(make_encoder_api, task, path, body, answer) -> None:
    assert await make_encoder_api(task).post(path, {"model": "fake", **body}) == (200, answer)


@pytest.mark.parametrize(
    ("path", "body", "field", "reason"),
    [
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}]}, "messages", "with nobody"),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, "return_token_strs", "exported"),
        ("/detokenize", {"tokens": HI}, "tokens", "exported without a detokenizer"),
        ("/detokenize", {"tokens": [SEP + 1]}, "tokens", "exported without a detokenizer"),
    ],
)
async def test_what_an_encoder_cannot_do(make_encoder_api, path, body, field, reason) -> None:
    api = make_encoder_api(has_detokenizer=False)
    status, answer = await api.post(path, {"model": "fake", **body})
    assert (status, answer["error"]["param"]) == (400, field)
    assert field in answer["error"]["message"]
    assert reason in answer["error"]["message"]
