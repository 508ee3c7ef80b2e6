"""See `tests.clients.agents`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.clients.agents.recordings import TRAFFIC, shortened, written

PACKAGES = {
    "codex": "@openai/codex",
    "claude": "@anthropic-ai/claude-code",
    "agents": "@openai/agents",
}
TASK = "Run the three commands and tell me when it is done."
DEADLINE = 180


@contextmanager
def scripted_server(record: Path) -> Iterator[str]:
    """Yields the URL of the server of `tests.clients.agents.server`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clients.agents.server", str(record), "serve",
         "--port", "0", "--state-dir", ":memory:", "--no-tune"],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout.readline().rstrip("\n").rpartition(" ")[2]
    finally:
        process.terminate()
        process.wait(60)


def codex(url: str) -> tuple[list[str], dict[str, str]]:
    provider = "model_providers.here"
    settings = {
        "model_provider": '"here"',
        f"{provider}.name": '"here"',
        f"{provider}.base_url": f'"{url}/v1"',
        f"{provider}.wire_api": '"responses"',
        f"{provider}.supports_websockets": "true",
    }
    flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
            "-m", "scripted", *flags, TASK], {}  # fmt: skip


def claude(url: str) -> tuple[list[str], dict[str, str]]:
    variables = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "unused",
        "ANTHROPIC_MODEL": "scripted",
        "ANTHROPIC_SMALL_FAST_MODEL": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    return ["claude", "-p", TASK, "--allowedTools", "Bash"], variables


def agents(url: str) -> tuple[list[str], dict[str, str]]:
    return [shutil.which("node") or "node", OWN_TOOLS.name, url], {}


AGENTS = {"codex": codex, "claude": claude, "agents": agents}
OWN_TOOLS = Path(__file__).with_name("own_tools.mjs")


def run(folder: Path, name: str) -> list[dict[str, Any]]:
    """Runs one agent and returns its requests."""
    record = folder / f"{name}.jsonl"
    record.write_text("")
    home = folder / f"home-{name}"
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    with scripted_server(record) as url:
        (program, *arguments), variables = AGENTS[name](url)
        ended = subprocess.run(
            [folder / "node_modules/.bin" / program, *arguments],
            cwd=folder if name == "agents" else work,
            env={**_environment(home), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    sent = [json.loads(line) for line in record.read_text().splitlines()]
    print(f"{name}: exit code {ended.returncode}, {len(sent)} requests")
    for entry in sent:
        print("  ", entry["path"], entry["headers"].get("user-agent"), entry["warnings"])
    if ended.returncode or "All is done." not in ended.stdout:
        sys.exit(f"{name} has failed:\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")
    return sent


def _environment(home: Path) -> Mapping[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CODEX_HOME": str(home),
        "OPENAI_API_KEY": "unused",
        "NO_COLOR": "1",
    }


def version(folder: Path, name: str) -> str:
    path = folder / "node_modules" / PACKAGES[name] / "package.json"
    return str(json.loads(path.read_text())["version"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.agents")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("folder", nargs="?", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "node_modules").is_dir():
            command = ["npm", "install", "--no-fund", "--no-audit", *PACKAGES.values(), "zod@4"]
            subprocess.run(command, cwd=folder, check=True)
        shutil.copy(OWN_TOOLS, folder)
        found = {f"{name} {version(folder, name)}": run(folder, name) for name in AGENTS}
    if arguments.record:
        kept = {
            name: [shortened(entry) for entry in sent if not entry["path"].startswith("warned")]
            for name, sent in found.items()
        }
        TRAFFIC.write_text(written(kept).replace(str(folder), "/agents"))


if __name__ == "__main__":
    main()
