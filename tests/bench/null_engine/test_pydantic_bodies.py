"""The peer that `bench.http requests` measures refuses what the server refuses."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Struct
from pydantic import ValidationError

from bench.null_engine.pydantic_bodies import pydantic_model
from fastovms.api.dialect import OPENAI
from fastovms.api.fields import check_ranges
from fastovms.api.request_schemas import ChatRequest, CompletionRequest
from fastovms.errors import InvalidField

PEERS = {struct: pydantic_model(struct) for struct in (CompletionRequest, ChatRequest)}
VALUES = ("x", True, {}, [], 0, 1, -1, 0.5, -0.5, 2, 3, 1.0, 1e39, 2**31, 2**32, 2**63, -(2**63))


def server_takes(struct: type[Struct], body: dict[str, object]) -> bool:
    try:
        check_ranges(msgspec.convert(body, struct), OPENAI)
    except (msgspec.ValidationError, InvalidField):
        return False
    return True


def peer_takes(struct: type[Struct], body: dict[str, object]) -> bool:
    try:
        PEERS[struct].model_validate(body)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("struct", "field"),
    [(struct, name) for struct in PEERS for name in struct.__struct_fields__],
)
def test_a_field_is_refused_by_both_or_by_neither(struct: type[Struct], field: str) -> None:
    bodies = [{field: value} for value in (None, *VALUES)]
    ours = [server_takes(struct, body) for body in bodies]
    assert ours == [peer_takes(struct, body) for body in bodies]


def test_no_field_is_missing() -> None:
    for struct, peer in PEERS.items():
        assert set(peer.model_fields) == set(struct.__struct_fields__)
