from __future__ import annotations

import pytest

from bench.endurance.http_attack.answers import Answer, AnswerReader, MalformedAnswer
from bench.endurance.http_attack.http_sessions import MARK, Session, Sessions, load_seeds
from bench.endurance.http_attack.mutated_bytes import judge

SEEDS = load_seeds()


def test_a_seed_and_an_index_decide_a_session() -> None:
    sessions = [Sessions(1, SEEDS).make(index) for index in range(300)]
    assert sessions == [Sessions(1, SEEDS).make(index) for index in range(300)]
    assert sessions != [Sessions(2, SEEDS).make(index) for index in range(300)]


class FakeConnection:
    """A connection with given responses."""

    def __init__(
        self, *statuses: int, body: bytes = b"{}", fault: MalformedAnswer | None = None
    ) -> None:
        self.answers = [Answer(status, b"HTTP/1.1 200 OK", body) for status in statuses]
        self.fault = fault
        self.reader = AnswerReader()


EXACT = Session([[b""]], [(200,), (404,)], is_exact=True)
BEFORE_A_MUTANT = Session([[b""]], [(200,), (404,)])
MUTANTS = Session([[b""]])

GOOD = [
    (EXACT, FakeConnection(200, 404)),
    (BEFORE_A_MUTANT, FakeConnection(200, 404, 400)),
    (BEFORE_A_MUTANT, FakeConnection(200, 404)),
    (MUTANTS, FakeConnection()),
    (MUTANTS, FakeConnection(200, 505, 501, 503, body=MARK)),
]
BAD = [
    (EXACT, FakeConnection(200)),
    (EXACT, FakeConnection(404, 200)),
    (EXACT, FakeConnection(200, 404, 404)),
    (EXACT, FakeConnection(200, 404, body=b"no such model: " + MARK)),
    (BEFORE_A_MUTANT, FakeConnection(200, 400)),
    (MUTANTS, FakeConnection(200, 500)),
    (MUTANTS, FakeConnection(502)),
    (MUTANTS, FakeConnection(200, fault=MalformedAnswer("a malformed head"))),
]


@pytest.mark.parametrize(("session", "connection"), GOOD)
def test_good_answers_pass(session: Session, connection: FakeConnection) -> None:
    assert judge(session, connection) == ""


@pytest.mark.parametrize(("session", "connection"), BAD)
def test_bad_answers_are_found(session: Session, connection: FakeConnection) -> None:
    assert judge(session, connection)
