"""Describes models to clients that read `models` of `GET /models`: Codex and Ollama's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from fastovms.api.serving.served import KnownModel
from fastovms.encoding import Task

_INSTRUCTIONS: Final = (
    "You are a coding agent that works in the user's terminal. Read the files that matter before "
    "you change them, change no more than the task needs, and follow the style of the code around. "
    "Use the tools to look things up rather than to guess, run the tests that cover a change, and "
    "go on until the task is done. Then say in a few sentences what you did and what is left."
)
"""What Codex tells a model first: it takes that from the list of models, and needs a text."""

_LEVELS: Final = ("low", "medium", "high")
_MAX_OUTPUT: Final = 10_000
_OUTPUT_SHARE: Final = 4
"""The output of one tool takes no more than one part in so many of the context."""


def client_cards(model: KnownModel) -> list[dict[str, object]]:
    """Returns what these clients read of a model, under each of its names."""
    return [{**_ollama_members(model, name), **_codex_members(model, name)} for name in model.names]


def _ollama_members(model: KnownModel, name: str) -> dict[str, object]:
    modified_at = datetime.fromtimestamp(model.created, UTC).isoformat(timespec="seconds")
    return {"name": name, "model": name, "modified_at": modified_at, "size": model.file_size}


def _codex_members(model: KnownModel, name: str) -> dict[str, object]:
    """Returns the members of Codex 0.169's `ModelInfo`, and those that earlier versions require."""
    context, thinks = model.max_model_len, "thinking" in (model.capabilities or ())
    levels = [{"effort": level, "description": f"{level} effort"} for level in _LEVELS]
    limit = _MAX_OUTPUT if context is None else min(_MAX_OUTPUT, context // _OUTPUT_SHARE)
    return {
        "slug": name,
        "display_name": name,
        "description": None,
        "supported_reasoning_levels": levels if thinks else [],
        "shell_type": "shell_command",
        "visibility": "list" if model.task is Task.TEXT_GENERATION else "hide",
        "supported_in_api": True,
        "priority": 1,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": _INSTRUCTIONS,
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": None,
        "truncation_policy": {"mode": "tokens", "limit": limit},
        "supports_parallel_tool_calls": True,
        "context_window": context,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"] if model.takes_images else ["text"],
    }
