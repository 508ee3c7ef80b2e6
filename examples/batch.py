"""Sends a file of requests as a batch, which the server processes when it has time, and reads the
file of results."""

import json
import os
import time

from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
client = OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "unused"))

requests = [
    {
        "custom_id": f"story {number}",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": "demo_model", "prompt": f"{number} friends", "max_tokens": 8},
    }
    for number in range(20)
]
lines = "\n".join(map(json.dumps, requests)).encode()
upload = client.files.create(file=("stories.jsonl", lines), purpose="batch")
batch = client.batches.create(
    input_file_id=upload.id, endpoint="/v1/completions", completion_window="24h"
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.2)
    batch = client.batches.retrieve(batch.id)
counts = batch.request_counts
print(f"{batch.status}: {counts.completed} of {counts.total}, {batch.usage.output_tokens} tokens")

answers = {}
for line in client.files.content(batch.output_file_id).text.splitlines():
    answer = json.loads(line)
    answers[answer["custom_id"]] = answer["response"]["body"]["choices"][0]["text"]
print(f"the first story: {requests[0]['body']['prompt']}{answers['story 0']}")
client.files.delete(upload.id)
