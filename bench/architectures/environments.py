"""Creates virtual environments with torch, one for each version of transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

_REQUIREMENTS: Final = Path(__file__).parent / "requirements.txt"


def interpreter(directory: Path, transformers: str) -> Path:
    """Returns the Python interpreter of the environment in `directory`.

    A missing environment is created, which takes some minutes and gigabytes.
    """
    environment = directory / f"transformers-{transformers}"
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        packages = ["-r", str(_REQUIREMENTS), f"transformers=={transformers}.*"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python
