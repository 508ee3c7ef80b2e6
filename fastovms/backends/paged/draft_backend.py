"""Loads a draft model, and checks that it fits the model that it is to draft for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import openvino_genai

from fastovms.backends.model_files.model_info import read_model_info
from fastovms.backends.paged.context_window import fit_attention
from fastovms.config.engine_config import EngineConfig
from fastovms.engine.drafting.draft_model import DraftModel
from fastovms.engine.model.model import PagedModel
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo


class DraftFiles(NamedTuple):
    """The directory of a draft model, and what its files say of it."""

    directory: Path
    info: ModelInfo


def load_draft_model(
    draft: DraftFiles, model_dir: Path, target: ModelInfo, config: EngineConfig
) -> DraftModel:
    """Compiles the draft model for `target` in `model_dir`, on the same device. It has no cache
    yet. What a token costs with it is estimated from the sizes of the weights, since reading them
    is what takes the time when tokens are generated one after another.

    Raises:
        ConfigurationError: the device cannot do it, or the model cannot draft.
    """
    draft_dir, info = draft
    # As fast as it can be whatever `config.precision` says: drafts change no text.
    model = PagedModel.load(
        draft_dir,
        device=config.device,
        properties=config.plugin_config,
        max_model_len=info.max_model_len,
    )
    if model.states is not None:  # they cannot be taken back where a draft was wrong
        raise ConfigurationError(
            f"the draft model {draft_dir} has states beside attention, as hybrid models have, and "
            "cannot draft"
        )
    info = fit_attention(info, model.graph)
    max_model_len = info.max_model_len
    if model.rope_switch_len is not None:  # it has no way to begin again
        max_model_len = min(max_model_len, model.rope_switch_len)
    return DraftModel(
        model,
        num_token_ids=min(model.vocab_size or info.vocab_size, target.vocab_size),
        max_model_len=max_model_len,
        max_num_batched_tokens=config.token_budget,
        cost=_weights_size(draft_dir) / _weights_size(model_dir),
        enable_prefix_caching=config.enable_prefix_caching,
    )


def read_draft_files(draft_dir: Path, model_dir: Path) -> DraftFiles:
    """Reads what a draft model's files say of it, which is quick.

    Raises:
        ConfigurationError: the directory holds no draft model for the one in `model_dir`.
    """
    info = read_model_info(draft_dir)
    if info.takes_images:
        raise ConfigurationError(f"the draft model {draft_dir} takes images")
    _check_vocabulary(draft_dir, model_dir)
    return DraftFiles(draft_dir, info)


def _check_vocabulary(draft_dir: Path, model_dir: Path) -> None:
    """Raises ConfigurationError where the tokens differ. Models of one family may pad their logits
    to different sizes; what counts is the tokens."""
    draft, target = _read_vocabulary(draft_dir), _read_vocabulary(model_dir)
    if draft == target:
        return
    differing = [token for token, token_id in target.items() if draft.get(token) != token_id]
    differing += [token for token in draft if token not in target]
    example = differing[0].decode(errors="replace")
    raise ConfigurationError(
        f"the draft model {draft_dir} has not the vocabulary of {model_dir}: they differ in "
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
