from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fastovms.backends.model_files.vocabulary import fit_vocabulary, load_grammar_compiler
from tests.backends.paged.test_paged_backend import MODEL


@pytest.mark.parametrize(
    ("width", "vocab_size", "eos_token_ids"),
    [(97, 97, {5}), (100, 100, {5, 99}), (None, 97, {5, 99})],
)
def test_the_weights_say_how_large_the_vocabulary_is(
    width: int | None, vocab_size: int, eos_token_ids: set[int]
) -> None:
    model = fit_vocabulary(replace(MODEL, eos_token_ids=frozenset({5, 99})), width)
    assert (model.vocab_size, set(model.eos_token_ids)) == (vocab_size, eos_token_ids)


@pytest.mark.parametrize("text", [None, "garbage", "{}"])
def test_without_a_good_tokenizer_json_there_are_no_grammars(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    assert load_grammar_compiler(tmp_path, MODEL) is None
    assert "structured outputs are off" in caplog.text
