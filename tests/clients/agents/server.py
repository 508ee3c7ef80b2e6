"""The real server with a model that calls the shell of an agent three times.

    python -m tests.clients.agents.server FILE serve FLAG...

Each request that generates, and each message of a WebSocket connection, is recorded in a line of
FILE with its path, headers and body.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from mmap import mmap
from pathlib import Path
from typing import Any

from fastovms.api import context, typed_body
from fastovms.api.served import ChatModel, ServedModel, ServedModels
from fastovms.app import serve as app
from fastovms.cli import main as cli
from fastovms.config import ChatConfig
from fastovms.http.messages import Request
from fastovms.params import GenerationRequest
from fastovms.parts.responses import create
from fastovms.parts.responses.socket import _Session
from fastovms.server_config import MediaConfig, ModelConfig
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.reasoning import detect_reasoning_format
from fastovms.text.template_files import make_template
from fastovms.text.tool_descriptions import written_call
from fastovms.text.tools import PLAIN_JSON, detect_tool_format
from tests.fakes import ByteTokenizer, FakeBackend, model_info
from tests.paths import TEMPLATES

NAME = "scripted"
NUM_CALLS = 3
SHELLS = {"exec_command": "cmd", "shell_command": "command", "shell": "command", "Bash": "command"}
"""The functions that run a command, with the name of the parameter that contains it."""


def command(number: int) -> str:
    """Returns a command whose result is not part of the command."""
    return f"printf 'RES%sT{number}' UL"


def own_calls(number: int) -> dict[str, dict[str, Any]]:
    """Returns arguments of the tools that vendors define, by the function that replaces each."""
    text = command(number)
    return {
        "shell": {"commands": [text]},
        "local_shell": {"command": ["sh", "-c", text]},
        "apply_patch": {"type": "create_file", "path": f"{number}.txt", "diff": "+a\n+b"},
        "computer": {"actions": [{"type": "wait"}, {"type": "screenshot"}]},
        "bash": {"command": text},
        "str_replace_based_edit_tool": {"command": "view", "path": f"/{number}"},
        "memory": {"command": "view", "path": "/memories"},
        "computer__wait": {"duration": number},
    }


def said_text(prompt: str) -> str:
    """Returns the model's answer to a prompt: the next call, or a text with all results. Tools that
    vendors define are called in turn."""
    start = '{"type": "function"'
    lines = [line for line in prompt.splitlines() if line.startswith(start)]
    offered = {tool["name"]: tool for tool in (json.loads(line)["function"] for line in lines)}
    names = [n for n, p in SHELLS.items() if n in offered and p in _parameters(offered[n])]
    results = sorted(set(re.findall(r"RESULT\d", prompt)))
    number = len(results) + 1
    own = [name for name in own_calls(number) if name in offered]
    if not names and not own:
        return "A title"
    if number > NUM_CALLS:
        return f"All is done. {' '.join(results)}"
    if names:
        name, text = names[0], command(number)
        written: Any = ["sh", "-c", text] if name == "shell" else text
        arguments = {SHELLS[name]: written}
        if name == "Bash":
            arguments["description"] = "prints"
    else:
        name = own[(number - 1) % len(own)]
        arguments = own_calls(number)[name]
    chat = chat_model()
    return f"Call {number}. " + written_call(chat.tool_format or PLAIN_JSON, name, arguments)


def _parameters(function: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = function["parameters"].get("properties", {})
    return found


def chat_model() -> ChatModel:
    source = (TEMPLATES / "qwen3.jinja").read_text()
    template = make_template({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})
    return ChatModel(
        template, detect_tool_format(source), detect_reasoning_format(source), ChatConfig()
    )


def script(request: GenerationRequest, index: int) -> list[int]:
    return list(said_text(bytes(request.prompt_token_ids).decode(errors="replace")).encode())


def load_models(models: Sequence[ModelConfig], media: MediaConfig, **_: object) -> ServedModels:
    info = dataclasses.replace(model_info(), name=NAME, max_model_len=10**6)
    backend = FakeBackend(script, info, tokens_per_step=7)
    metrics = GenerationMetrics(NAME, backend.stats)
    names = ["gpt-5.5-codex", "claude-sonnet-4-5", "claude-haiku-4-5"]
    served = ServedModel(backend, ByteTokenizer(), metrics, chat=chat_model(), aliases=tuple(names))
    return ServedModels([served])


def record_to(path: Path) -> None:
    """Records each request."""

    def write(request: Request, body: str | bytes, kind: str = "") -> None:
        entry = {
            "path": f"{kind}{request.raw_path}",
            "headers": dict(request.headers),
            "body": json.loads(body),
            "warnings": request.warnings,
        }
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    read, take = typed_body.read_named, _Session._take

    async def read_and_write(request: Request, *arguments: Any) -> Any:
        found = await read(request, *arguments)
        if not request.wants_websocket and "-" not in request.id.partition("-")[2]:
            write(request, bytes(request.body))
        elif request.warnings:
            write(request, "{}", "warned ")
        return found

    def take_and_write(self: _Session, message: bytes | mmap) -> None:
        write(self._request, bytes(message), "websocket ")
        take(self, message)

    context.read_named = create.read_named = read_and_write
    _Session._take = take_and_write  # type: ignore[method-assign]


if __name__ == "__main__":
    app.load_models = load_models
    record_to(Path(sys.argv.pop(1)))
    cli.run()
