"""Runs the scenarios of clients that are written in JavaScript: `python -m tests.clients.ai_sdk`.

It needs Node 20 or later with npm, installs the clients in a folder of their own, and starts the
server with the demo model.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.real_server import start_server, stop_server

HERE = Path(__file__).parent


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for file in ("package.json", "scenarios.mjs"):
            shutil.copy(HERE / file, folder)
        quiet = ("--no-audit", "--no-fund", "--loglevel=error")
        subprocess.run(["npm", "install", *quiet], cwd=folder, check=True)
        server = start_server()
        try:
            command = ["node", "scenarios.mjs", server.url]
            return subprocess.run(command, cwd=folder, check=False, timeout=300).returncode
        finally:
            stop_server(server)


if __name__ == "__main__":
    sys.exit(main())
