"""Loads the drafter of a model: a smaller model with the same vocabulary, or a draft head."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import openvino as ov
import openvino_genai

from fastovms.backends.model_files import fit_attention, read_model_info
from fastovms.backends.model_task import (
    check_draft_head_files,
    first_integer,
    has_own_head,
    read_json,
)
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedGraph
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo
from fastovms.parts.drafts.draft_head import DraftHead
from fastovms.parts.drafts.draft_model import DraftModel
from fastovms.parts.drafts.head_graph import (
    DraftHeadGraph,
    is_draft_head,
    other_head,
    read_draft_head,
)


class DraftFiles(NamedTuple):
    """The directory of a draft model or draft head, and facts from its files.

    Attributes:
        info: the facts about a draft model; None = it is a head.
        head: the head, fitted to its target; None = not fitted yet, or a draft model.
    """

    directory: Path
    info: ModelInfo | None
    head: DraftHeadGraph | None = None


def check_draft_files(draft_dir: Path) -> ModelInfo | None:
    """Returns the facts about a draft model; None = the directory has a head. Raises
    ConfigurationError if files are missing or broken, or the head is of another kind."""
    config_path = draft_dir / "config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    if has_own_head(draft_dir) or is_draft_head(config):
        check_draft_head_files(draft_dir)
        return None
    other = other_head(config)
    if other is not None:
        raise ConfigurationError(
            f"{draft_dir} is a draft head of the architecture {other}: only heads of "
            "EAGLE-3 and MTP and whole models can draft"
        )
    return read_model_info(draft_dir)


def read_draft_files(draft_dir: Path, model_dir: Path, target: ModelInfo) -> DraftFiles:
    """Reads the facts about a draft model or head from its files, which is quick. Raises
    ConfigurationError if it cannot draft for the model in `model_dir`."""
    info = check_draft_files(draft_dir)
    if info is None:
        _check_head_config(draft_dir, target)
        return DraftFiles(draft_dir, None)
    if info.takes_images:
        raise ConfigurationError(
            f"the draft model {draft_dir} takes images, which is not supported"
        )
    _check_vocabulary(draft_dir, model_dir)
    return DraftFiles(draft_dir, info)


def fit_draft_files(draft: DraftFiles, target: PagedGraph, max_model_len: int) -> DraftFiles:
    """Returns the files with a head that fits the target; changes the target's graph in place (see
    `read_draft_head`). Returns the files of a draft model unchanged. Raises ConfigurationError if
    the head does not fit."""
    if draft.info is not None:
        return draft
    head = read_draft_head(ov.Core(), draft.directory, target, max_model_len)
    return draft._replace(head=head)


def load_draft_model(
    draft: DraftFiles, model_dir: Path, target: ModelInfo, config: EngineConfig
) -> DraftModel:
    """Compiles the draft model or head for the model `target` in `model_dir`, on the same device,
    without allocating its KV cache. The cost per token is estimated from the size of the weights,
    because reading them dominates decoding. Raises ConfigurationError if the device cannot run the
    draft model, or the draft model is recurrent."""
    draft_dir, info, head = draft
    # The fastest precision, whatever `config.precision` is: drafts do not change the text.
    model = load_model(
        draft_dir,
        device=config.device,
        properties=config.plugin_config,
        max_model_len=(info or target).max_model_len,
        graph=None if head is None else head.graph,
    )
    if model.states is not None:  # states cannot be rolled back after a wrong draft
        raise ConfigurationError(
            f"the draft model {draft_dir} is a recurrent or hybrid model, which cannot draft"
        )
    info = fit_attention(info or target, model.graph)
    max_model_len = info.max_model_len
    # A draft model cannot recompute a sequence that outgrows `rope_switch_len`.
    if model.rope_switch_len is not None:
        max_model_len = min(max_model_len, model.rope_switch_len)
    if head is not None:
        return DraftHead(
            model,
            token_ids=head.token_ids.tolist(),
            max_model_len=max_model_len,
            max_num_batched_tokens=config.token_budget,
            cost=head.weights_size / _weights_size(model_dir),
            enable_prefix_caching=config.enable_prefix_caching,
        )
    return DraftModel(
        model,
        num_token_ids=min(model.vocab_size or info.vocab_size, target.vocab_size),
        max_model_len=max_model_len,
        max_num_batched_tokens=config.token_budget,
        cost=_weights_size(draft_dir) / _weights_size(model_dir),
        enable_prefix_caching=config.enable_prefix_caching,
    )


def _check_head_config(head_dir: Path, target: ModelInfo) -> None:
    """Raises ConfigurationError if a head is made for a model with another vocabulary or width."""
    head = read_json(head_dir / "config.json")
    config = dict(target.config)
    text_config = config.get("text_config")
    scopes = [config, text_config] if isinstance(text_config, dict) else [config]
    for name, keys in _SHARED_SIZES.items():
        made_for = first_integer([head], keys)
        own = first_integer(scopes, keys[-1:])
        if made_for is not None and own is not None and made_for != own:
            raise ConfigurationError(
                f"the draft model {head_dir} is a head for models with {name} "
                f"{made_for}, but {target.name} has {name} {own}"
            )


_SHARED_SIZES = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("target_hidden_size", "hidden_size"),
}
"""The members of a head's `config.json` that describe its target model, by the target's
property."""


def _check_vocabulary(draft_dir: Path, model_dir: Path) -> None:
    """Raises ConfigurationError if the tokens of the two models differ. The padding of the
    vocabulary may differ."""
    draft, target = _read_vocabulary(draft_dir), _read_vocabulary(model_dir)
    if draft == target:
        return
    differing = [token for token, token_id in target.items() if draft.get(token) != token_id]
    differing += [token for token in draft if token not in target]
    example = differing[0].decode(errors="replace")
    raise ConfigurationError(
        f"the draft model {draft_dir} does not have the vocabulary of {model_dir}: they differ in "
        f"{len(differing)} tokens, such as {example!r}"
    )


def _read_vocabulary(model_dir: Path) -> dict[bytes, int]:
    try:
        vocabulary: dict[bytes, int] = openvino_genai.Tokenizer(model_dir).get_vocab()
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigurationError(f"{model_dir}: the tokenizer cannot be loaded: {reason}") from None
    return vocabulary


def _weights_size(model_dir: Path) -> int:
    return (model_dir / "openvino_model.bin").stat().st_size
