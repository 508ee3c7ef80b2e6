"""Runs the scenarios of clients that are written in JavaScript: `python -m tests.clients.ai_sdk`.

It needs Node 20 or later with npm, installs the clients in a folder of their own, and starts the
server with the demo model and a tiny model of embeddings.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir
from tests.real_server import start_server, stop_server

HERE = Path(__file__).parent


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for file in ("package.json", "scenarios.mjs"):
            shutil.copy(HERE / file, folder)
        quiet = ("--no-audit", "--no-fund", "--loglevel=error")
        subprocess.run(["npm", "install", *quiet], cwd=folder, check=True)
        models = (str(DEMO_MODEL), f"encoder={encoder_dir()}")
        server = start_server(*(part for model in models for part in ("--model", model)))
        try:
            command = ["node", "scenarios.mjs", server.url]
            return subprocess.run(command, cwd=folder, check=False, timeout=300).returncode
        finally:
            stop_server(server)


if __name__ == "__main__":
    sys.exit(main())
