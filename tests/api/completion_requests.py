"""Request bodies of completions with fakes, and the texts that the chunks of a stream form."""

from __future__ import annotations

V1 = "/v1/completions"
V3 = "/v3/completions"
BODY = {"model": "fake", "prompt": "ab"}
STREAM = {**BODY, "stream": True}


def texts(events: list) -> dict[int, str]:
    joined: dict[int, str] = {}
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else ():
            joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return joined
