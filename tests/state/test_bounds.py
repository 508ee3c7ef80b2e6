"""What every state database drives out, takes back and refuses."""

from __future__ import annotations

import pytest

from fastovms.errors import StateFailed
from fastovms.state.database import StateBounds
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateDatabase
from fastovms.state.store import ResponseProgress, StoredResponse, UnknownCursor
from tests.state.conftest import UNBOUNDED
from tests.state.transactions import add, context, do, find, items

# Bounds


def evict_all(database: StateDatabase) -> None:
    """Evicts what is due, and passes the pauses between evictions by age."""
    clock = database._clock
    while True:
        while not database.do_maintenance():
            continue
        began_at = clock.now
        clock.now += database._rounds.seconds_left(clock.now)
        if clock.now == began_at or not database._is_due():
            clock.now = began_at
            return


def test_least_recently_used_object_is_evicted_first(make_database, clock):
    database = make_database(UNBOUNDED._replace(max_count=2))
    for id in ("a", "b", "c"):
        clock.now += 100
        add(database, id)
    clock.now += 100
    context(database, "a")
    evict_all(database)
    assert [find(database, id) is not None for id in "abc"] == [True, False, True]
    database.check()


def test_expired_objects_are_evicted(make_database, clock):
    database = make_database(UNBOUNDED._replace(max_age=1000))
    assert database.seconds_to_expiry() is None
    add(database, "a")
    clock.now += 600
    add(database, "b")
    assert database.seconds_to_expiry() == 400
    assert database.do_maintenance() > 0
    clock.now += 400
    evict_all(database)
    assert find(database, "a") is None
    assert database.seconds_to_expiry() == 600


def test_jump_of_the_clock_evicts_a_share_at_a_time(make_database, clock, caplog):
    database = make_database(UNBOUNDED._replace(max_age=30 * 86400))
    for number in range(100):
        add(database, str(number))
    now, clock.now = clock.now, clock.now + 100 * 365 * 86400
    for _ in range(5):
        assert database.do_maintenance() > 0
    assert database.totals.num_objects == 94
    assert [record.message for record in caplog.records] == [
        "many responses and conversations have expired at once; a sixteenth is deleted a minute: "
        "check the clock if that is unexpected"
    ]
    clock.now += 60
    assert database.do_maintenance() > 0
    assert database.totals.num_objects == 89
    clock.now = now
    evict_all(database)
    assert database.totals.num_objects == 89
    database.check()


@pytest.mark.parametrize(
    ("bounds", "before", "after"),
    [
        # Each letter is an object of that tenant, in the order of use; a capital runs.
        ({"max_count": 4}, "vvaaaa", "vvaa"),
        ({"max_count": 4}, "aaaavv", "aavv"),
        ({"max_count": 4}, "aaaaaa", "aaaa"),  # a tenant alone may have everything
        ({"max_count": 6}, "aaaabbbv", "aaabbv"),  # the one with the most first
        ({"max_count": 5}, "aaaabbbv", "aabbv"),
        ({"max_count": 4}, "AAAAvv", "AAAAvv"),  # what runs drives out nobody's share
        ({"max_count": 4}, "AAaavvv", "AAvv"),
        ({"max_bytes": 4500}, "vaaaaaa", "vaaa"),
        ({"max_bytes": 2300, "max_count": 2}, "vaab", "ab"),
        ({"max_age": 10}, "va", ""),
    ],
)
def test_eviction_takes_from_the_tenant_with_the_most(make_database, clock, bounds, before, after):
    database = make_database(UNBOUNDED)
    for number, name in enumerate(before):
        clock.now += 1
        progress = ResponseProgress.RUNNING if name.isupper() else ResponseProgress.FINISHED
        response = StoredResponse(str(number), b"x" * 740, progress=progress)
        tenant = name.lower()
        do(database, lambda state, t=tenant, r=response: state.add_response(t, r, None))
    clock.now += 20
    database._bounds = UNBOUNDED._replace(**bounds)
    evict_all(database)
    kept = [
        name
        for number, name in enumerate(before)
        if do(database, lambda state, n=number, t=name: state.find_events(t.lower(), str(n), 0))
    ]
    assert "".join(sorted(kept)) == "".join(sorted(after))
    database.check()


def test_running_response_is_not_evicted(make_database, clock):
    database = make_database(StateBounds(max_age=1, max_count=0, max_bytes=1000))
    add(database, "a", progress=ResponseProgress.RUNNING)
    clock.now += 100
    assert database.do_maintenance() > 0
    assert find(database, "a") is not None


@pytest.mark.slow
def test_many_are_evicted_a_few_at_a_time(make_database, clock):
    database = make_database(UNBOUNDED._replace(max_count=0))
    for number in range(150):
        add(database, str(number))
    assert database.do_maintenance() == 0
    assert 0 < database.totals.num_objects < 150
    evict_all(database)
    assert database.totals == (0, 0)


# Transactions


def test_failed_operation_is_undone_and_others_are_kept(make_database):
    database = make_database()

    def fail(state: Operations) -> None:
        state.add_conversation("t", "c", b"{}", items("i"))
        raise UnknownCursor("x")

    outcomes = database.transact(
        [
            lambda state: state.add_conversation("t", "a", b"{}", []),
            fail,
            lambda state: state.add_conversation("t", "a", b"{}", []),  # the id is taken
            lambda state: state.find_conversation("t", "a"),
        ]
    )
    assert [type(error) for _, error in outcomes] == [
        type(None),
        UnknownCursor,
        StateFailed,
        type(None),
    ]
    assert outcomes[-1].result == b"{}"
    assert database.totals.num_objects == 1
    database.check()
