"""Prints a text while the model writes it."""

import os

from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
client = OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "unused"))

stream = client.completions.create(
    model="demo_model",
    prompt="Once upon a time",
    max_tokens=60,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].text, end="", flush=True)
    if chunk.usage is not None:  # the last chunk counts the tokens
        print(f"\n[{chunk.usage.completion_tokens} tokens]")
