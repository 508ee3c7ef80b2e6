"""The binding's tables of types are made before a second thread can ask for them."""

from __future__ import annotations

import threading

import pytest

from fastovms.app import loading
from fastovms.config.api_config import MediaConfig
from fastovms.config.model_config import DEMO_MODEL, ModelConfig
from fastovms.system import binding_tables
from fastovms.text.tokens.tokenizer import Tokenizer


class _Stop(Exception):
    """Ends loading where the test has seen enough."""


def test_tables_are_made_before_a_tokenizer_is_loaded_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_by: list[threading.Thread] = []

    def make() -> None:
        binding_tables.make_binding_tables()
        made_by.append(threading.current_thread())

    def load(*_: object) -> Tokenizer:
        assert made_by == [loader]
        assert threading.current_thread() is not loader
        raise _Stop

    loader = threading.current_thread()
    monkeypatch.setattr(loading, "make_binding_tables", make)
    monkeypatch.setattr(Tokenizer, "load", load)
    with pytest.raises(_Stop):
        loading.load_models([ModelConfig(DEMO_MODEL, ("m",))], MediaConfig())
