"""What the pipeline's process does without."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["numba", "uvloop"])
def test_the_worker_does_not_import_what_it_does_not_need(module: str) -> None:
    code = f"import sys, fastovms.backends.genai.worker_main; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
