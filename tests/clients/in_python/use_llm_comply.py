"""Runs the compliance tests of `llm-comply`: Open Responses, chats, and messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FORMATS = {
    "open-responses": (),
    "openai-chat": (),
    "anthropic": (
        "--auth-header", "x-api-key", "--no-bearer", "-H", "anthropic-version:2023-06-01",
    ),
}  # fmt: skip
EXPECTED = {"Image Input", "Error Handling"}
"""What fails: the demo model reads no images, and a request without a model gets the first one, as
in vLLM."""


def main(url: str, name: str) -> None:
    program = Path(sys.executable).parent / "llm-comply"
    for form, flags in FORMATS.items():
        command = [program, "--base-url", url, "--api-key", "none", "--model", name]
        ran = subprocess.run(
            [*command, "--format", form, "--json", *flags],
            check=False,
            capture_output=True,
            text=True,
            timeout=200,
        )
        results = json.loads(ran.stdout)["results"]
        failed = {found["name"] for found in results if found["status"] == "failed"}
        passed = [found["name"] for found in results if found["status"] == "passed"]
        print(f"  {form}: {len(passed)} passed, {', '.join(sorted(failed))} failed")
        assert len(passed) >= 6, ran.stdout
        assert failed <= EXPECTED, ran.stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
