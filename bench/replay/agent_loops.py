"""Agent loops: ten tool calls that read and edit a package, with a growing history.

Files, matches and edits are those of the package. The agent's comments are real prose that no
prompt contains, each sentence once, so that drafts do not gain more than in reality.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePosixPath

from bench.replay.packages import Change, Package
from bench.replay.session import Session, Turn
from bench.replay.vocabulary import Vocabulary

NUM_CALLS = 10
NUM_LINES = 24
"""The number of lines that a tool call reads or writes."""

_MAX_LISTED = 30
_SYSTEM = """system
You work on a Python package. Each turn call one tool by JSON in <tool_call> tags:
list_files(directory), search(pattern, path), read_file(path, first_line, last_line),
edit_file(path, old_text, new_text), run_tests(path).
"""


def agent_loops(
    package: Package, vocabulary: Vocabulary, thoughts: Iterator[str]
) -> Iterator[Session]:
    """Yields sessions of `NUM_CALLS` turns until the changes of the package or the comments are
    used up."""
    changes = iter(list(package.changes(NUM_LINES)))
    while some := list(islice(changes, (NUM_CALLS - 1) // 3)):
        steps = list(islice(_steps(package, some), NUM_CALLS))
        thinking = list(islice(thoughts, len(steps)))
        if len(steps) < NUM_CALLS or len(thinking) < NUM_CALLS:
            return
        history = vocabulary.encode(
            f"{_SYSTEM}user\nBring {some[0].path} up to the newest release.\nassistant\n"
        )
        turns = []
        for thought, (name, arguments, result) in zip(thinking, steps, strict=True):
            call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
            answer = vocabulary.encode(f"{thought}\n<tool_call>\n{call}\n</tool_call>")
            turns.append(Turn(history, answer))
            history += answer + vocabulary.encode(f"\ntool\n{result}\nassistant\n")
        yield Session(tuple(turns))


def _steps(package: Package, changes: list[Change]) -> Iterator[tuple[str, dict[str, object], str]]:
    """Yields tools with their arguments and results."""
    directory = str(PurePosixPath(changes[0].path).parent)
    listed = [path for path in package.old if path.startswith(directory)][:_MAX_LISTED]
    yield "list_files", {"directory": directory}, "\n".join(listed)
    for path, old, new in changes:
        text = package.old[path]
        first_line = text[: text.index(old)].count("\n") + 1
        last_line = first_line + old.count("\n") - 1
        word = max(old.split(), key=lambda part: (part.isidentifier(), len(part)))
        found = [
            f"{path}:{number}:{line}"
            for number, line in enumerate(text.splitlines(), 1)
            if word in line
        ]
        yield "search", {"pattern": word, "path": path}, "\n".join(found[:10])
        lines: dict[str, object] = {"first_line": first_line, "last_line": last_line}
        yield "read_file", {"path": path, **lines}, old
        old_lines, new_lines = _hunk(old, new)
        texts = {"old_text": old_lines, "new_text": new_lines}
        yield "edit_file", {"path": path, **texts}, f"{path} has been written."
    yield "run_tests", {"path": "tests"}, "all passed"


def _hunk(old: str, new: str) -> tuple[str, str]:
    """Returns a changed part with the lines around it."""
    old_lines, new_lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = 0
    while old_lines[start : start + 1] == new_lines[start : start + 1]:
        start += 1
    end = 0
    most = min(len(old_lines), len(new_lines)) - start
    while end < most and old_lines[-1 - end] == new_lines[-1 - end]:
        end += 1
    start, end = max(0, start - 2), max(0, end - 2)
    return (
        "".join(old_lines[start : len(old_lines) - end]),
        "".join(new_lines[start : len(new_lines) - end]),
    )
