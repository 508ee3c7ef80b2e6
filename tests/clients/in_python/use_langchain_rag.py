"""Uses LangChain to answer from documents: they are split and kept by their vectors, what is found
is ranked by `CohereRerank`, and a chat answers from it. One server does all three."""

from __future__ import annotations

import sys

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_text_splitters import RecursiveCharacterTextSplitter

PAGES = {
    "harbour": "The harbour opens at six. Boats that come at night wait before the wall until the "
    "light is green. The harbour master has his office in the red house.",
    "bread": "Bread is made of flour, water and salt. It rests for a night, and is baked in the "
    "morning. The old oven stands behind the house.",
    "school": "The school has three rooms. Lessons begin at eight, and end at noon.",
}
QUESTION = "The harbour opens at six."


def main(url: str, name: str) -> None:
    pages = [Document(text, metadata={"page": page}) for page, text in PAGES.items()]
    parts = RecursiveCharacterTextSplitter(chunk_size=80, chunk_overlap=0).split_documents(pages)
    assert len(parts) > len(pages)
    # A tokenizer of OpenAI's would cut the texts otherwise.
    embeddings = OpenAIEmbeddings(
        base_url=url,
        api_key="none",
        model="encoder",
        check_embedding_ctx_length=False,
        chunk_size=2,
    )
    store = InMemoryVectorStore.from_documents(parts, embeddings)
    [(nearest, score), *_] = store.similarity_search_with_score(parts[0].page_content, k=3)
    assert (nearest.page_content, round(score, 3)) == (parts[0].page_content, 1)

    reranker = CohereRerank(
        base_url=url.removesuffix("/v1"), cohere_api_key="none", model="reranker", top_n=2
    )
    retriever = ContextualCompressionRetriever(
        base_compressor=reranker, base_retriever=store.as_retriever(search_kwargs={"k": 4})
    )
    found = retriever.invoke(QUESTION)
    scores = [document.metadata["relevance_score"] for document in found]
    assert len(found) == 2
    assert scores == sorted(scores, reverse=True)

    chat = ChatOpenAI(base_url=url, api_key="none", model=name, temperature=0, max_tokens=40)
    prompt = ChatPromptTemplate.from_template("Answer from this:\n{context}\n\n{question}")
    chain = (
        {"context": retriever | RunnableLambda(joined), "question": RunnablePassthrough()}
        | prompt
        | chat
        | StrOutputParser()
    )
    answer = chain.invoke(QUESTION)
    assert answer
    assert "".join(chain.stream(QUESTION)) == answer


def joined(documents: list[Document]) -> str:
    return "\n".join(document.page_content for document in documents)


if __name__ == "__main__":
    main(*sys.argv[1:])
