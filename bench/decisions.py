"""Questions a second: one request of `/v1/decisions` against as many chat requests of one token.

python -m bench.decisions http://localhost:8000    # against a running server
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from bench.common.report import machine, median, table

STATE: Final = "The customer writes that the parcel has not come and asks for the money back. " * 20
NUM_CLIENTS: Final = 16


def post(url: str, path: str, body: Mapping[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def ask_decisions(url: str, salt: str, num_questions: int) -> float:
    """Asks all questions in one request. Returns questions a second."""
    questions = [
        {"type": "predicate", "instructions": f"The customer has written {i} times."}
        for i in range(num_questions)
    ]
    start = time.perf_counter()
    answer = post(
        url, "/v1/decisions", {"input": STATE, "questions": questions, "cache_salt": salt}
    )
    assert len(answer["answers"]) == num_questions
    return num_questions / (time.perf_counter() - start)


def ask_chats(url: str, salt: str, num_questions: int) -> float:
    """Asks each question in a chat, from several clients. Returns questions a second."""

    def ask(i: int) -> None:
        content = f"{STATE}\n\nThe customer has written {i} times.\n\nIs this true? yes or no"
        messages = [{"role": "user", "content": content}]
        body = {"messages": messages, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
        post(url, "/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 10})

    start = time.perf_counter()
    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        list(threads.map(ask, range(num_questions)))
    return num_questions / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("url", help="address of a running server")
    parser.add_argument("--questions", type=int, default=400, help="default: 400")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    options = parser.parse_args()
    ways = {"one request": ask_decisions, "chats": ask_chats}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds):
        for name, ask in ways.items():
            rates[name].append(ask(options.url, f"{name[:3]}{number}", options.questions))
    print(machine())
    rows = [(name, f"{median(found):.1f}") for name, found in rates.items()]
    print(table(("way", "questions a second"), rows))
    print(f"ratio {median(rates['one request']) / median(rates['chats']):.2f}")


if __name__ == "__main__":
    main()
