"""Makes APIs over fake encoders."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.api.encoder_api import EncoderApi


@pytest.fixture
def make_encoder_api() -> Callable[..., EncoderApi]:
    made = []

    def make(*served, models=(), tracer=None) -> EncoderApi:
        made.append(EncoderApi(*served, models=models, tracer=tracer))
        return made[-1]

    yield make
    for api in made:
        api.close()
