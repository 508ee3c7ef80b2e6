"""Users who ask, read a stream and think, against any server with OpenAI's API:

    pip install locust
    MODEL=demo_model locust -f bench/locustfile.py --host http://127.0.0.1:8000 \
        --headless -u 32 -r 8 -t 60s

Of each stream, the time to the first token, the mean time between tokens and the time to the end
are reported; locust's own entry ends with the headers. Set API_PREFIX=/v3 for OpenVINO Model
Server's dialect, API_KEY where a key is needed, MAX_TOKENS for longer answers.
"""

from __future__ import annotations

import os
import random
import time

from locust import HttpUser, between, task

PREFIX = os.environ.get("API_PREFIX", "/v1")
MODEL = os.environ.get("MODEL", "demo_model")
MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "64"))
PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "In the forest there lived",
    "One, two, three,",
)


class Reader(HttpUser):
    """Reads one stream after the other."""

    wait_time = between(0.1, 1)

    def on_start(self) -> None:
        key = os.environ.get("API_KEY")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}

    @task
    def complete(self) -> None:
        body = {
            "model": MODEL,
            "prompt": random.choice(PROMPTS),
            "max_tokens": MAX_TOKENS,
            "stream": True,
        }
        arrivals: list[float] = []
        start = time.perf_counter()
        with self.client.post(
            f"{PREFIX}/completions",
            json=body,
            headers=self.headers,
            name="headers",
            stream=True,
            catch_response=True,
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}: {response.text[:200]}")
                return
            last = b""
            for line in response.iter_lines():
                if line.startswith(b"data: "):
                    arrivals.append(time.perf_counter())
                    last = line
            if last != b"data: [DONE]":
                response.failure(f"the stream ended with {last[:200]!r}")
                return
            response.success()
        self._report("first token", arrivals[0] - start)
        self._report("whole stream", arrivals[-1] - start)
        if len(arrivals) > 2:
            self._report("between tokens", (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1))

    def _report(self, name: str, seconds: float) -> None:
        self.environment.events.request.fire(
            request_type="SSE",
            name=name,
            response_time=seconds * 1000,
            response_length=0,
            exception=None,
            context={},
        )
