"""The whole API with fakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from fastovms.api.image_parts import ImageInput
from fastovms.api.served import ChatModel
from fastovms.config import ApiConfig, ModelLimits
from fastovms.params import ModelInfo
from fastovms.parts.embeddings.served import ServedEncoder
from fastovms.parts.media.files import Documents
from fastovms.parts.responses.background import BackgroundRuns, ResponsesState
from fastovms.state.database import StateBounds
from fastovms.state.sqlite.database import Database, UnusableFile
from fastovms.state.sqlite.location import AwaitedFile
from fastovms.state.state_store import StateDatabase, StateStore
from fastovms.telemetry.tracing import Tracer
from tests.api.encoder_api import EncoderApi, served_encoder
from tests.api.fake_api import Api
from tests.fakes import ByteTokenizer, FakeBackend, Script, model_info


@pytest.fixture(scope="session")
def make_api() -> Callable[..., Api]:
    def make(
        script: Script | str = "hello",
        *,
        model: ModelInfo | None = None,
        tokens_per_step: int = 1,
        config: ApiConfig | None = None,
        limits: ModelLimits | None = None,
        tokenizer: ByteTokenizer | None = None,
        chat: ChatModel | None = None,
        state: ResponsesState | None = None,
        images: ImageInput | None = None,
        first_id: int = 0,
        tracer: Tracer | None = None,
        documents: Documents | None = None,
    ) -> Api:
        if isinstance(script, str):
            tokens = list(script.encode())
            play: Script = lambda request, index: tokens  # noqa: E731
        else:
            play = script
        backend = FakeBackend(play, model or model_info(), tokens_per_step=tokens_per_step)
        return Api(
            backend,
            config or ApiConfig(),
            limits or ModelLimits(),
            tokenizer or ByteTokenizer(),
            chat or ChatModel(),
            state,
            images,
            first_id,
            tracer,
            documents,
        )

    return make


def _refuse(reason: str) -> Database:
    raise UnusableFile(reason)


@pytest.fixture
async def make_state():
    """Returns a state in memory, or on a disk whose files were not read yet (`unread`)."""
    states = []

    def make(*, max_runs: int = 10, max_bytes: int = 10**12, unread: str = "") -> ResponsesState:
        bounds = StateBounds(1e9, 10**9, max_bytes)
        if unread:
            database: StateDatabase = AwaitedFile(partial(_refuse, unread), unread)
        else:
            database = Database(":memory:", bounds, time.time)
        store = StateStore(database)
        states.append(ResponsesState(store, BackgroundRuns(max_runs)))
        return states[-1]

    yield make
    for state in states:
        await state.runs.drain(60)
        await state.store.close()


@pytest.fixture
def make_served() -> Iterator[Callable[..., ServedEncoder]]:
    """Returns models of fake encoders."""
    made: list[ServedEncoder] = []

    def make(*args, **options) -> ServedEncoder:
        made.append(served_encoder(*args, **options))
        return made[-1]

    yield make
    for served in made:
        served.tokenizing.close()


@pytest.fixture
def make_encoder_api() -> Callable[..., EncoderApi]:
    made = []

    def make(*served, models=(), tracer=None) -> EncoderApi:
        made.append(EncoderApi(*served, models=models, tracer=tracer))
        return made[-1]

    yield make
    for api in made:
        api.close()
