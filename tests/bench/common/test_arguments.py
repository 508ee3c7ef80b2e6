from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("program", ["start", "memory", "long_contexts", "replay"])
def test_a_directory_without_a_model_is_refused_in_one_line(program: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"bench.{program}", str(tmp_path)]
    command += ["--data", "none"] if program == "replay" else []
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    last_line = result.stderr.splitlines()[-1]
    expected = f"error: argument model_dir: there is no openvino_model.xml in {str(tmp_path)!r}"
    assert (result.returncode, last_line) == (2, f"python -m bench.{program}: {expected}")
