"""Uses Cohere's client to rank documents, by both versions of its API."""

from __future__ import annotations

import cohere

DOCUMENTS = ["The sky is blue.", "Paris is the capital of France.", "Bread is made of flour."]


def main(url: str, name: str) -> None:
    root = url.removesuffix("/v1")
    clients = (
        cohere.Client(api_key="none", base_url=root),  # asks /v1/rerank
        cohere.Client(api_key="none", base_url=f"{root}/v3"),  # as for OpenVINO Model Server
        cohere.ClientV2(api_key="none", base_url=root),  # asks /v2/rerank
    )
    for client in clients:
        answer = client.rerank(model="reranker", query="What is Paris?", documents=DOCUMENTS)
        scores = [result.relevance_score for result in answer.results]
        assert scores == sorted(scores, reverse=True)
        assert {result.index for result in answer.results} == {0, 1, 2}
        first, *more = client.rerank(
            model="reranker", query="What is Paris?", documents=DOCUMENTS, top_n=1
        ).results
        assert (first.index, more) == (answer.results[0].index, [])
    newer = clients[-1]
    meta = newer.rerank(model="reranker", query="What is Paris?", documents=DOCUMENTS).meta
    assert meta.api_version.version == "2"
    assert meta.tokens.input_tokens > len(DOCUMENTS)
    assert "documents" in _reason(newer, cohere.BadRequestError, "reranker", [])
    assert "`nothing`" in _reason(newer, cohere.NotFoundError, "nothing", DOCUMENTS)


def _reason(
    client: cohere.ClientV2, kind: type[Exception], model: str, documents: list[str]
) -> str:
    """Returns what the client tells of a request that is refused with an error of the kind."""
    try:
        client.rerank(model=model, query="What is Paris?", documents=documents)
    except kind as error:
        return error.body["message"]
    raise AssertionError(f"no {kind.__name__}")
