"""Prints the server's address, its models and an example command to standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from fastovms import __version__
from fastovms.api.served import ServedModels
from fastovms.params import Task

_TRIALS: Final[Mapping[Task, tuple[str, Mapping[str, object]]]] = {
    Task.TEXT_GENERATION: ("completions", {"prompt": "Once upon a time", "max_tokens": 60}),
    Task.EMBEDDINGS: ("embeddings", {"input": "Once upon a time"}),
    Task.IMAGES: ("images/generations", {"prompt": "A lighthouse at dusk"}),
    Task.SPEECH_OUT: ("audio/speech", {"input": "Once upon a time", "response_format": "wav"}),
    Task.RERANK: ("rerank", {"query": "Once upon a time", "documents": ["A tale", "A bill"]}),
}
"""Example requests by task: the path below /v1, and the body's fields other than the model; None =
a form with audio."""


def greeting(addresses: list[str], models: ServedModels, *, needs_key: bool) -> str:
    """Returns the lines that are printed once the models are ready for requests."""
    lines = [f"fastovms {__version__} is listening on {', '.join(addresses)}"]
    for model in models.named:
        later = "" if model.served is not None else ", loaded when it is asked for"
        length = "" if model.max_model_len is None else f": context of {model.max_model_len} tokens"
        lines.append(f"model {model.name}{length}{later}")
    if not models.known:
        return "\n".join([*lines, "no model is served until the list of models names one"])
    first = models.known[0]
    target = f"curl {_curl_target(addresses[0])}/v1"
    key = ' -H "Authorization: Bearer $API_KEY"' if needs_key else ""
    if first.task is Task.SPEECH:
        lines.append(f"try: {target}/audio/transcriptions{key} -F file=@speech.wav")
        return "\n".join(lines)
    path, rest = _TRIALS[first.task]
    body = json.dumps({"model": first.name, **rest})
    quoted = body.replace("'", "'\\''")
    into = " -o speech.wav" if first.task is Task.SPEECH_OUT else ""
    header = "-H 'Content-Type: application/json'"
    lines.append(f"try: {target}/{path}{key} {header} -d '{quoted}'{into}")
    return "\n".join(lines)


def _curl_target(address: str) -> str:
    if address.startswith("unix:"):
        return f"--unix-socket {address.removeprefix('unix:')} http://localhost"
    return address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
