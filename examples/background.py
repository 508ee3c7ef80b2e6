"""Starts a background response, follows its stream, stops, and resumes the stream later."""

import os

from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
client = OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "unused"))

job = client.responses.create(
    model="demo_model", input="Tell me a story.", temperature=0, background=True
)
print(f"started, {job.status}")

text, last_seen = "", 0
with client.responses.retrieve(job.id, stream=True) as events:
    for event in events:
        last_seen = event.sequence_number
        if event.type == "response.output_text.delta":
            text += event.delta
        if len(text) > 40:
            break  # as if the connection had been lost; the response goes on
print(f"left after event {last_seen}")

with client.responses.retrieve(job.id, stream=True, starting_after=last_seen) as events:
    for event in events:
        if event.type == "response.output_text.delta":
            text += event.delta
finished = client.responses.retrieve(job.id)
print(f"{finished.status}, whole: {text == finished.output_text}")
print(text)
