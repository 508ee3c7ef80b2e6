from __future__ import annotations

from fastovms.api.serving.served import KnownModel
from fastovms.encoding import Task
from tests.api.encoder_api import served_encoder


def test_what_is_known_of_it():
    for task, capability in ((Task.EMBEDDINGS, "embedding"), (Task.RERANK, "rerank")):
        served = served_encoder(task)
        known = KnownModel.of(served)
        assert known.task is task
        assert known.capabilities == (capability,)
        assert known.max_model_len == 64
        assert known.failure is None
        served.tokenizing.close()
