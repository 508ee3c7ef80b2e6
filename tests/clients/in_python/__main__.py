"""Runs the scenarios of clients that are written in Python: `python -m tests.clients.in_python`.

Their dependencies exclude each other, so each client has an environment of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir
from tests.real_server import NAME, start_server, stop_server

HERE = Path(__file__).parent
TIMEOUT: Final = 300.0
"""Seconds that the scenarios of a client may take."""

CLIENTS: Final[Mapping[str, Sequence[str]]] = {
    "cohere": ("cohere>=5.20,<6",),
    "guidance": ("guidance>=0.3.1,<0.4", "openai>=3,<4"),
    "instructor": ("instructor>=1.17,<2",),
    "langchain": ("langchain>=1.5,<2", "langchain-openai>=1.7,<2", "numpy"),
    "litellm": ("litellm>=1.106,<2", "mcp"),
    "llama-index": (
        "llama-index-llms-openai-like>=0.8,<0.9",
        "llama-index-embeddings-openai-like>=0.2,<1",
    ),
    "llm": ("llm>=0.36,<0.40",),
    "outlines": ("outlines>=1.3,<2", "openai>=3,<4"),
    "pydantic-ai": ("pydantic-ai-slim[openai]>=2.68,<3",),
    "smolagents": ("smolagents[openai]>=1.26,<2",),
}
"""What each client's environment needs."""


def _python(environments: Path, client: str) -> Path:
    """Returns the Python of a client's environment, which is made where it is missing."""
    folder = environments / client
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*command, *CLIENTS[client]], check=True)
    return python


def _run(environments: Path, client: str, url: str) -> bool:
    module = f"use_{client.replace('-', '_')}"
    program = f"import sys, {module}; {module}.main(*sys.argv[1:])"
    command = [_python(environments, client), "-c", program, f"{url}/v1", NAME]
    # litellm takes the prices of models from its package, not from a network.
    environ = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ran = subprocess.run(command, cwd=HERE, env=environ, check=False, timeout=TIMEOUT)
    is_good = ran.returncode == 0
    print(f"{client}: {'good' if is_good else 'FAILED'}", flush=True)
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.in_python")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="some of them only")
    parser.add_argument("--environments", type=Path, help="where environments are, and stay")
    options = parser.parse_args()
    unknown = set(options.clients) - set(CLIENTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(CLIENTS)}")
    models = (
        f"{NAME}={DEMO_MODEL}",
        f"encoder={encoder_dir()}",
        f"reranker={encoder_dir(1)}",
    )
    server = start_server(*(part for model in models for part in ("--model", model)))
    try:
        with tempfile.TemporaryDirectory() as folder:
            environments = (options.environments or Path(folder)).absolute()
            chosen = options.clients or list(CLIENTS)
            results = [_run(environments, client, server.url) for client in chosen]
    finally:
        stop_server(server)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
