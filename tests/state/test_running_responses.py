"""Responses that run: who owns them, until when, and what is kept of their events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.errors import TooLarge
from fastovms.parts.postgres.database import PostgresDatabase
from fastovms.state.operations import Operations
from fastovms.state.running_responses import Replica
from fastovms.state.sqlite.database import Database
from fastovms.state.store import (
    EventPack,
    InterruptedResponse,
    OwnedResponse,
    ResponseKey,
    ResponseProgress,
    Resumption,
    StoredResponse,
    response_topic,
)
from fastovms.state.tables import Tables
from tests.replicas import LEASE, tell_time, use_test_time
from tests.state.conftest import UNBOUNDED, Clock
from tests.state.transactions import do, find, items

RUNNING = StoredResponse("r", b"{}", progress=ResponseProgress.RUNNING)
CAN_GO_ON = replace(RUNNING, input=items("i"), resumption=Resumption("m", b"job"))
PATIENCE = 60.0
KEY = ResponseKey("t", "r")
TOPIC = response_topic(*KEY)


class Side:
    """What one replica asks of a database, at the time of the test's clock.

    Attributes:
        told: the topics that the last operation has notified.
    """

    def __init__(self, database: Database | PostgresDatabase, id: str, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._replica = Replica(id, LEASE)
        self.told: list[str] = []

    def __getattr__(self, name: str):
        def operate(*arguments):
            self.told = []
            return do(self._database, lambda state: self._operate(state._tables, name, *arguments))

        return operate

    def _operate(self, tables: Tables, name: str, *arguments):
        tell_time(tables, self._clock)
        operations = Operations(tables, self._replica, self.told.append)
        return getattr(operations, name)(*arguments)


@pytest.fixture
def make_timed(request, make_database):
    """Makes a database that goes by the clock of the test."""

    def make(*arguments):
        database = make_database(*arguments)
        if isinstance(database, PostgresDatabase):
            database.connect()
            use_test_time(request.getfixturevalue("postgres"))
        return database

    return make


@pytest.fixture
def database(make_timed):
    return make_timed()


@pytest.fixture
def a(database, clock) -> Side:
    side = Side(database, "a", clock)
    assert side.add_response("t", RUNNING, None) is True
    return side


@pytest.fixture
def b(database, clock) -> Side:
    return Side(database, "b", clock)


def test_running_response_belongs_to_one_replica(a, b, database):
    assert a.renew_leases() == [OwnedResponse(KEY, False)]
    assert b.renew_leases() == []
    assert b.add_response("t", RUNNING, None) is False
    assert b.finish_response("t", StoredResponse("r", b"b"), None) is False
    assert a.finish_response("t", StoredResponse("r", b"a"), None) is True
    assert a.told == [TOPIC]
    assert a.finish_response("t", StoredResponse("r", b"a"), None) is False
    assert b.find_response("t", "r").body == b"a"
    assert a.renew_leases() == []
    database.check()


def test_cancel_request_reaches_the_owner(a, b):
    assert b.request_cancel("other", "r") is False
    assert b.request_cancel("t", "r") is True
    assert b.told == ["a"]
    assert a.renew_leases() == [OwnedResponse(KEY, True)]
    a.finish_response("t", StoredResponse("r", b""), None)
    assert b.request_cancel("t", "r") is False


def test_owner_is_notified_of_a_deletion(a, b, database):
    assert b.delete_response("t", "r") is True
    assert b.told == ["a", TOPIC]
    assert a.renew_leases() == []
    assert a.add_events("t", "r", EventPack(0, b"x")) is False
    database.check()


def test_lease_expires_unless_it_is_renewed(a, b, clock, database):
    for _ in range(3):
        clock.now += LEASE - 1
        a.renew_leases()
        b.interrupt_expired(PATIENCE)
        assert b.told == []
    clock.now += LEASE + 1
    assert a.renew_leases() == [OwnedResponse(KEY, False)], "it comes back in time, if late"
    clock.now += LEASE + 1
    b.interrupt_expired(PATIENCE)
    assert b.told == [TOPIC]
    assert find(database, "r").progress is ResponseProgress.INTERRUPTED
    assert a.renew_leases() == []
    assert a.finish_response("t", StoredResponse("r", b""), None) is False
    database.check()


def test_replica_gives_up_only_its_own_responses(a, b, database):
    b.give_up([KEY])
    assert find(database, "r").progress is ResponseProgress.RUNNING
    a.give_up([ResponseKey("t", "none"), KEY])
    assert a.told == [TOPIC]
    assert find(database, "r").progress is ResponseProgress.INTERRUPTED
    database.check()


def test_events_are_stored_as_they_come(a, b, database):
    packs = [EventPack(0, b"01"), EventPack(2, b"2"), EventPack(3, b"345")]
    assert b.add_events("t", "r", packs[0]) is False
    for pack in packs:
        assert a.add_events("t", "r", pack) is True
        assert a.told == [TOPIC]
    database.check()
    for start, first in [(0, 0), (1, 0), (2, 1), (3, 2), (5, 2), (99, 2)]:
        found = b.find_events("t", "r", start)
        assert found == (ResponseProgress.RUNNING, packs[first:])
    assert b.find_events("other", "r", 0) is None
    longer = EventPack(3, b"3456")
    assert a.add_events("t", "r", longer) is True, "it was not known whether the last one is kept"
    assert b.find_events("t", "r", 3).packs == [longer]
    database.check()
    a.give_up([KEY])
    assert b.find_events("t", "r", 2) == (ResponseProgress.INTERRUPTED, [packs[1], longer])


def test_finished_response_replaces_its_earlier_events(a, b, database):
    a.add_events("t", "r", EventPack(0, b"x" * 1000))
    a.finish_response("t", StoredResponse("r", b"", events=b"all"), None)
    assert b.find_events("t", "r", 7) == (ResponseProgress.FINISHED, [EventPack(0, b"all")])
    assert database.totals.num_bytes < 1000
    database.check()
    b.delete_response("t", "r")
    assert database.totals == (0, 0)


def test_events_count_toward_the_size(make_timed, clock):
    database = make_timed(UNBOUNDED._replace(max_bytes=2000))
    a = Side(database, "a", clock)
    a.add_response("t", RUNNING, None)
    a.add_events("t", "r", EventPack(0, b"x" * 1000))
    totals = database.totals
    with pytest.raises(TooLarge, match="2000"):
        a.add_events("t", "r", EventPack(1, b"x" * 1000))
    assert database.totals == totals
    assert database.evict() is False
    database.check()


@pytest.fixture
def cut(a, b, clock):
    """A response whose owner has ended."""
    a.delete_response("t", "r")
    a.add_response("t", CAN_GO_ON, None)
    a.add_events("t", "r", EventPack(0, b"01"))
    a.add_events("t", "r", EventPack(2, b"2", b"said"))
    assert b.take_over(["m"], 9) == [], "it has an owner"
    clock.now += LEASE + 1
    return a


def test_one_replica_takes_over_an_expired_response(cut, b, clock, database):
    assert b.take_over(["other"], 9) == []
    assert b.take_over([], 9) == []
    assert b.take_over(["other", "m"], 0) == []
    assert b.take_over(["other", "m"], 9) == [OwnedResponse(KEY, False, "m")]
    assert cut.take_over(None, 9) == [], "one gets it"
    assert cut.add_events("t", "r", EventPack(3, b"3")) is False
    assert cut.begin_attempt("t", "r") is None
    assert b.renew_leases() == [OwnedResponse(KEY, False, "m")]
    packs = [EventPack(0, b"01"), EventPack(2, b"2", b"said")]
    expected = InterruptedResponse(b"{}", items("i"), None, b"job", packs, 1, False)
    assert b.begin_attempt("t", "r") == expected
    assert b.find_events("t", "r", 0) == (
        ResponseProgress.RUNNING,
        [pack._replace(outputs=None) for pack in packs],
    )
    assert b.finish_response("t", StoredResponse("r", b"end"), None) is True
    database.check()
    b.delete_response("t", "r")
    assert database.totals == (0, 0)


def test_resumption_is_replaced_by_its_owner_only(cut, b, database):
    new = Resumption("n", b"longer job")
    assert b.set_resumption("t", "r", new) is False, "it is not its own"
    assert cut.set_resumption("t", "r", new) is True
    database.check()
    assert b.take_over(["m"], 9) == []
    assert b.take_over(["n"], 9) == [OwnedResponse(KEY, False, "n")]
    assert b.begin_attempt("t", "r").job == new.job
    assert b.set_resumption("t", "r", None) is True
    database.check()
    assert b.begin_attempt("t", "r") is None
    b.give_up([KEY])
    assert find(database, "r").progress is ResponseProgress.INTERRUPTED
    database.check()


def test_attempts_reset_when_tokens_are_stored(cut, b, database):
    b.take_over(None, 9)
    assert [b.begin_attempt("t", "r").num_attempts for _ in range(3)] == [1, 2, 3]
    b.add_events("t", "r", EventPack(3, b"3"))
    assert b.begin_attempt("t", "r").num_attempts == 4, "an event of the server's is no progress"
    b.add_events("t", "r", EventPack(4, b"4", b"more"))
    assert b.begin_attempt("t", "r").num_attempts == 1
    database.check()


def test_given_up_response_can_be_taken_over_at_once(cut, b, clock, database):
    cut.renew_leases()
    cut.give_up([KEY])
    assert cut.told == [TOPIC]
    assert cut.renew_leases() == []
    clock.now += 0.1
    b.interrupt_expired(PATIENCE)
    assert find(database, "r").progress is ResponseProgress.RUNNING
    assert b.take_over(["m"], 9) == [OwnedResponse(KEY, False, "m")]
    database.check()


def test_failed_attempt_is_taken_over_last(cut, b, clock):
    cut.begin_attempt("t", "r")
    cut.add_response("t", replace(CAN_GO_ON, id="later"), None)
    clock.now += LEASE + 1
    assert [response.key.id for response in b.take_over(None, 1)] == ["later"]
    assert b.take_over(None, 1) == [OwnedResponse(KEY, False, "m", 1)]


def test_cancel_request_is_kept_for_the_next_owner(cut, b):
    assert b.request_cancel("t", "r") is True
    b.take_over(["m"], 9)
    assert b.begin_attempt("t", "r").cancel_requested is True


def test_response_without_a_new_owner_is_interrupted(cut, b, clock, database):
    b.interrupt_expired(PATIENCE)
    assert find(database, "r").progress is ResponseProgress.RUNNING
    clock.now += PATIENCE
    b.interrupt_expired(PATIENCE)
    assert b.told == [TOPIC]
    assert find(database, "r").progress is ResponseProgress.INTERRUPTED
    assert b.take_over(None, 9) == []
    database.check()


def test_resumption_counts_toward_the_size(make_timed, clock):
    database = make_timed(UNBOUNDED._replace(max_bytes=2000))
    a = Side(database, "a", clock)
    with pytest.raises(TooLarge, match="2000"):
        a.add_response("t", replace(CAN_GO_ON, resumption=Resumption("m", b"x" * 2000)), None)
    assert database.totals == (0, 0)
    a.add_response("t", CAN_GO_ON, None)
    with pytest.raises(TooLarge, match="2000"):
        a.add_events("t", "r", EventPack(0, b"x", b"x" * 2000))
    database.check()
