from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.backends.paged.cache_reservation import reserve_cache
from fastovms.config.engine_config import EngineConfig
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo
from tests.engine.fake_model import FakeModel

INFO = ModelInfo(
    name="fake", created=0, max_model_len=4096, vocab_size=97, eos_token_ids=frozenset()
)


def test_it_takes_what_the_operator_gives_or_sequences_can_use() -> None:
    config = EngineConfig(cache_size=1024 * 1024 / 1024**3)
    assert reserve_cache(FakeModel(), None, INFO, config, None) == 1024
    short = replace(INFO, max_model_len=16)
    config = replace(config, max_num_seqs=10)
    assert reserve_cache(FakeModel(), None, short, config, None) == 40


def test_a_cache_that_holds_no_block_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="1024 bytes each"):
        reserve_cache(FakeModel(), None, INFO, EngineConfig(cache_size=1e-9), None)
