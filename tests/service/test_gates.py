"""Which checks a server has, by its flags and by whether it has keys."""

from __future__ import annotations

import socket

import pytest

from fastovms.config.http_config import SecurityConfig
from fastovms.http.routing.messages import Headers, Request
from fastovms.service.gates import cors_policy, gates_for

EVIL, FRIEND = "http://evil.example", "https://app.example"


def statuses(
    config: SecurityConfig, *, needs_key: bool = False, is_local: bool = True
) -> list[int]:
    """Of a page of somebody, one of a friend, and a page whose name leads here; 0 = let through."""
    cors = cors_policy(config, needs_key=needs_key)
    gates = gates_for(config, cors, needs_key=needs_key, tls=False, is_local=lambda: is_local)
    found = []
    for fields in (
        {"Host": "localhost:1", "Origin": EVIL},
        {"Host": "localhost:1", "Origin": FRIEND},
        {"Host": "evil.example", "Origin": EVIL},
    ):
        asked = Request("POST", "/v1/x", headers=Headers(fields.items()), client="127.0.0.1:1")
        refusals = [gate(asked) for gate in gates]
        found.append(next((refusal.status for refusal in refusals if refusal is not None), 0))
    return found


@pytest.mark.parametrize(
    ("fields", "without_key", "not_local", "with_key"),
    [
        ({}, [403, 403, 421], [403, 403, 0], [0, 0, 0]),
        ({"allowed_origins": "*"}, [0, 0, 421], [0, 0, 0], [0, 0, 0]),
        ({"allowed_origins": FRIEND}, [403, 0, 421], [403, 0, 0], [403, 0, 0]),
        ({"allowed_hosts": "*"}, [403, 403, 0], [403, 403, 0], [0, 0, 0]),
        ({"allowed_hosts": "a,evil.example"}, [403, 403, 0], [403, 403, 0], [0, 0, 0]),
        ({"allowed_hosts": "a"}, [403, 403, 421], [403, 403, 421], [0, 0, 421]),
        ({"allowed_hosts": "a,*", "allowed_origins": "*"}, [0] * 3, [0] * 3, [0] * 3),
    ],
)
def test_who_is_let_through(
    fields: dict[str, str], without_key: list[int], not_local: list[int], with_key: list[int]
) -> None:
    config = SecurityConfig(**fields)  # type: ignore[arg-type]
    assert statuses(config) == without_key
    assert statuses(config, is_local=False) == not_local
    assert statuses(config, needs_key=True) == with_key


def test_the_machine_may_be_called_by_its_name() -> None:
    config = SecurityConfig()
    cors = cors_policy(config, needs_key=False)
    gates = gates_for(config, cors, needs_key=False, tls=False, is_local=lambda: True)
    host = Headers([("Host", f"{socket.gethostname()}:8000")])
    asked = Request("GET", "/v1/models", headers=host, client="127.0.0.1:1")
    assert [gate(asked) for gate in gates] == [None, None]
