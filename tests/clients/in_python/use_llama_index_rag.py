"""Uses LlamaIndex to answer from documents: an index of vectors, `CohereRerank` behind it, and a
query engine and a chat engine whose answers name what they are made of."""

from __future__ import annotations

import sys

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from llama_index.postprocessor.cohere_rerank import CohereRerank

TEXTS = [
    "The harbour opens at six. Boats that come at night wait before the wall.",
    "Bread is made of flour, water and salt. It rests for a night.",
    "The school has three rooms. Lessons begin at eight, and end at noon.",
]


def main(url: str, name: str) -> None:
    embedding = OpenAILikeEmbedding(model_name="encoder", api_base=url, api_key="none")
    index = VectorStoreIndex.from_documents(
        [Document(text=text) for text in TEXTS],
        embed_model=embedding,
        transformations=[SentenceSplitter(chunk_size=64, chunk_overlap=0)],
    )
    reranker = CohereRerank(
        base_url=url.removesuffix("/v1"), api_key="none", model="reranker", top_n=2
    )
    chat = OpenAILike(
        model=name,
        api_base=url,
        api_key="none",
        temperature=0,
        max_tokens=40,
        context_window=2048,
        is_chat_model=True,
    )
    engines = {"similarity_top_k": 3, "node_postprocessors": [reranker], "llm": chat}
    engine = index.as_query_engine(**engines)
    answer = engine.query("When does the harbour open?")
    assert str(answer)
    scores = [node.score for node in answer.source_nodes]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert {node.text for node in answer.source_nodes} < set(TEXTS)

    streamed = index.as_query_engine(**engines, streaming=True).query("When does the harbour open?")
    assert "".join(streamed.response_gen) == str(answer)
    talk = index.as_chat_engine(chat_mode="context", **engines)
    for question in ("When does the harbour open?", "And the school?"):
        said = talk.chat(question)
        assert said.response
        assert said.source_nodes


if __name__ == "__main__":
    main(*sys.argv[1:])
