"""Answers a question from documents: finds passages by embeddings, reranks them, and asks the
model."""

import os
import sys

from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
client = OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "unused"))
DOCUMENTS = [
    "The office opens at eight and closes at six.",
    "The key of the cellar is with Anna.",
    "Visitors park behind the house.",
    "Bread is delivered on Mondays.",
    "The printer on the first floor takes A3.",
]  # passages of a few hundred words each; keep their vectors in a database
question = sys.argv[1] if len(sys.argv) > 1 else "Who has the key of the cellar?"


def embed(texts: list[str]) -> list[list[float]]:
    """Returns the normalized embedding of each text."""
    return [item.embedding for item in client.embeddings.create(model="bge", input=texts).data]


[query] = embed([question])
vectors = embed(DOCUMENTS)
scores = [sum(a * b for a, b in zip(query, vector, strict=True)) for vector in vectors]
nearest = sorted(range(len(DOCUMENTS)), key=lambda index: -scores[index])[:4]
found = [DOCUMENTS[index] for index in nearest]

body = {"model": "rank", "query": question, "documents": found, "top_n": 2}
ranked = client.post("/rerank", body=body, cast_to=object)["results"]
passages = "\n".join(found[result["index"]] for result in ranked)
print(passages, end="\n\n")

prompt = f"Answer the question from these passages:\n{passages}\n\nQuestion: {question}"
answer = client.chat.completions.create(
    model=client.models.list().data[0].id,  # the first one of the command line
    messages=[{"role": "user", "content": prompt}],
    temperature=0,
    max_completion_tokens=500,
)
print(answer.choices[0].message.content)
