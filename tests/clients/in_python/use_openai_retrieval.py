"""Uses the openai client and plain HTTP as programs for OpenVINO Model Server do: texts are
compared by the cosine of their vectors, and documents are ranked, below `/v3`."""

from __future__ import annotations

import base64
import json
import sys
from urllib.request import Request, urlopen

import numpy as np
from openai import OpenAI

STORY = "The fisherman saw a storm come over the sea, and turned his boat to the harbour."
ALMOST = "The fisherman saw a storm come over the sea, and turned his boat to the shore."
OTHER = "Interest on savings is paid at the end of each quarter."


def main(url: str, name: str) -> None:
    root = url.removesuffix("/v1")
    for prefix in ("/v3", "/v1"):
        with OpenAI(base_url=root + prefix, api_key="unused") as client:
            compare(client)
            count(client)
    rank(f"{root}/v3/rerank")


def compare(client: OpenAI) -> None:
    """A text is nearer to one that shares most of its words than to one that shares none."""
    found = client.embeddings.create(model="encoder", input=[STORY, ALMOST, OTHER])
    story, almost, other = (np.array(each.embedding) for each in found.data)
    assert np.allclose([np.linalg.norm(each) for each in (story, almost, other)], 1, atol=1e-5)
    assert story @ story > story @ almost > story @ other

    whole = client.embeddings.create(model="encoder", input=STORY, encoding_format="base64")
    content = whole.data[0].embedding
    assert isinstance(content, str)
    same = np.frombuffer(base64.b64decode(content), np.float32)
    assert np.allclose(same, story, atol=1e-5)


def count(client: OpenAI) -> None:
    """Tokens are counted as `usage` counts them, and may be sent in the place of texts."""
    is_ovms = str(client.base_url).endswith("/v3/")
    body = {"model": "encoder", "text" if is_ovms else "prompt": STORY}
    tokens = client.post("/tokenize", cast_to=object, body=body)["tokens"]
    by_text = client.embeddings.create(model="encoder", input=STORY)
    by_tokens = client.embeddings.create(model="encoder", input=tokens)
    assert by_text.usage.prompt_tokens == by_tokens.usage.prompt_tokens == len(tokens)
    assert np.allclose(by_text.data[0].embedding, by_tokens.data[0].embedding, atol=1e-5)


def rank(url: str) -> None:
    body = {
        "model": "reranker",
        "query": "What did the fisherman see?",
        "documents": [OTHER, STORY],
        "top_n": 1,
        "return_documents": True,
    }
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as response:
        [best] = json.load(response)["results"]
    assert best["document"]["text"] == body["documents"][best["index"]]
    assert 0 <= best["relevance_score"] <= 1


if __name__ == "__main__":
    main(*sys.argv[1:])
