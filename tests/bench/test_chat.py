"""The benchmark of deltas still fits the server."""

from __future__ import annotations

import pytest

from bench.chat import seconds_a_token, shapes
from fastovms.api.rendering import load_chat
from fastovms.config import ChatConfig
from fastovms.server_config import DEMO_MODEL
from fastovms.text.tokenizer import Tokenizer

NUM_WORDS = 48


@pytest.mark.parametrize("name", shapes(NUM_WORDS))
async def test_every_token_is_timed(name):
    tokenizer = Tokenizer.load(DEMO_MODEL)
    chat = load_chat(DEMO_MODEL, ChatConfig())
    seconds, num_events = await seconds_a_token(shapes(NUM_WORDS)[name], tokenizer, chat)
    assert len(seconds) > NUM_WORDS
    assert num_events > len(seconds) / 2
