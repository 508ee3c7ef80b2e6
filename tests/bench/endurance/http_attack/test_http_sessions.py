from __future__ import annotations

from random import Random

import pytest

from bench.endurance.http_attack.answers import Answer, AnswerReader, MalformedAnswer
from bench.endurance.http_attack.http_sessions import MARK, REFUSALS, Session, Sessions, load_seeds
from bench.endurance.http_attack.mutated_bytes import judge
from bench.endurance.http_attack.mutations import MUTATIONS, Mutation, mutate, splice, split

SEEDS = load_seeds()


def test_a_seed_and_an_index_decide_a_session() -> None:
    sessions = [Sessions(1, SEEDS).make(index) for index in range(300)]
    assert sessions == [Sessions(1, SEEDS).make(index) for index in range(300)]
    assert sessions != [Sessions(2, SEEDS).make(index) for index in range(300)]


def test_there_are_sessions_of_all_kinds() -> None:
    sessions = [Sessions(1, SEEDS).make(index) for index in range(300)]
    assert any(len(session.messages) > 5 for session in sessions)
    assert any(session.is_exact and not session.must_close for session in sessions)
    hidden = [session for session in sessions if session.must_close]
    assert all(session.statuses[-1] == REFUSALS for session in hidden)
    assert all(MARK in b"".join(map(b"".join, session.messages)) for session in hidden)
    assert len(hidden) > 10


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_mutation_takes_any_bytes(mutation: Mutation) -> None:
    rng = Random(1)
    for data in (b"\r", b"\r\n", b"9", *SEEDS):
        assert isinstance(mutation(data, rng), bytes)


def test_most_mutants_differ_from_their_seeds() -> None:
    rng = Random(1)
    mutants = [mutate(seed, rng) for seed in SEEDS for _ in range(20)]
    originals = [seed for seed in SEEDS for _ in range(20)]
    differing = sum(a != b for a, b in zip(mutants, originals, strict=True))
    assert differing > 0.9 * len(mutants)


def test_pieces_come_to_the_whole() -> None:
    rng = Random(1)
    for seed in SEEDS:
        whole = splice(seed, seed, rng)
        assert b"".join(split(whole, rng)) == whole


class FakeConnection:
    """What a session has brought."""

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
