"""Tells of models as Anthropic's clients read it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from fastovms.api.serving.served import KnownModel


def anthropic_list(models: Sequence[KnownModel]) -> dict[str, object]:
    """Returns the list of all models, which is one page."""
    return {
        "data": [anthropic_card(model) for model in models],
        "has_more": False,
        "first_id": models[0].name if models else None,
        "last_id": models[-1].name if models else None,
    }


def anthropic_card(model: KnownModel) -> dict[str, object]:
    """Returns what is told of one model. Prompt and answer share its context."""
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(timespec="seconds"),
        "lifecycle": "active",
        "max_input_tokens": model.max_model_len,
        "max_tokens": model.max_model_len,
        **dict.fromkeys(("capabilities", "deprecated_at", "retires_at", "line")),
    }
