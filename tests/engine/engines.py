"""Makes engines with the parts that a server adds to them."""

from __future__ import annotations

from typing import Any

from fastovms.app.paged import engine_extensions
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.model import Model
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.parts.drafts.draft_model import DraftModel


def full_engine(
    model: Model,
    config: EngineConfig,
    *,
    grammars: GrammarCompiler | None = None,
    draft_model: DraftModel | None = None,
    **rest: Any,
) -> Engine:
    """Returns an engine with drafts, beam searches and grammars.

    Args:
        rest: further arguments of `Engine`.
    """
    extensions = engine_extensions(model, config, grammars, draft_model)
    return Engine(model, config, extensions=extensions, **rest)
