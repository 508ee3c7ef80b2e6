"""Uses the program `llm` with a model that its configuration names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FUNCTION = """def get_weather(city: str) -> str:
    'Get the current weather in a city'
    return '{"temperature": 18, "condition": "sunny"}'
"""


def main(url: str, name: str) -> None:
    program = Path(sys.executable).parent / "llm"
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "LLM_USER_PATH": folder}
        entry = [
            "- model_id: local",
            f"  model_name: {name}",
            f"  api_base: {url}",
            "  api_key_name: none",
            "  supports_schema: true",
            "  supports_tools: true",
        ]
        Path(folder, "extra-openai-models.yaml").write_text("\n".join(entry), encoding="utf-8")

        def ask(*words: str) -> str:
            command = [program, "-m", "local", "--key", "none", *words]
            return subprocess.run(
                command, env=environ, check=True, capture_output=True, text=True, timeout=60
            ).stdout

        options = ("-o", "max_tokens", "30", "-o", "temperature", "0")
        streamed = ask(*options, "Hello")
        assert streamed.strip()
        assert ask(*options, "--no-stream", "Hello") == streamed
        made = json.loads(ask("--schema", "name, age int", "-o", "max_tokens", "400", "A person"))
        assert set(made) == {"name", "age"}
        question = ("-o", "temperature", "0", "What is the weather in Paris?")
        for stream in ((), ("--no-stream",)):
            assert "18" in ask("--functions", FUNCTION, *stream, *question)
