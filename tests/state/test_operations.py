"""What is stored is found again: responses, chains of them, conversations and their items."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.errors import TooLarge
from fastovms.state import operations
from fastovms.state.store import (
    EventPack,
    FoundEvents,
    FoundResponse,
    Page,
    ResponseProgress,
    StoredItem,
    StoredResponse,
    UnknownCursor,
    UnknownPrevious,
)
from tests.state.transactions import add, context, do, find, ids, items


def test_response_is_found_by_its_tenant_only(make_database):
    database = make_database()
    add(database, "a")
    assert find(database, "a") == FoundResponse(b"{}", items("a-out"), ResponseProgress.FINISHED)
    assert find(database, "a", tenant="other") is None
    assert find(database, "b") is None
    assert do(database, lambda state: state.find_conversation("t", "a")) is None
    assert do(database, lambda state: state.delete_response("other", "a")) is False
    assert do(database, lambda state: state.delete_response("t", "a")) is True
    assert do(database, lambda state: state.delete_response("t", "a")) is False
    assert find(database, "a") is None
    assert database.totals == (0, 0)
    database.check()


def test_branches_of_a_chain_do_not_see_each_other(make_database):
    database = make_database()
    add(database, "root")
    add(database, "left", "root")
    add(database, "right", "root")
    add(database, "leaf", "right")
    assert ids(context(database, "left")) == ["root-in", "root-out", "left-in", "left-out"]
    assert ids(context(database, "leaf")) == [
        f"{turn}-{side}" for turn in ("root", "right", "leaf") for side in ("in", "out")
    ]
    assert context(database, "none") is None
    assert context(database, "leaf", tenant="other") is None


def test_chain_names_the_missing_response(make_database):
    database = make_database()
    add(database, "root")
    add(database, "middle", "root")
    add(database, "leaf", "middle")
    do(database, lambda state: state.delete_response("t", "middle"))
    found = context(database, "leaf")
    assert found.missing_id == "middle"
    assert ids(found) == ["leaf-in", "leaf-out"]


def test_response_that_continues_a_cycle_is_refused(make_database):
    database = make_database()
    add(database, "a")
    add(database, "b", "a")
    add(database, "c", "b")
    do(database, lambda state: state.delete_response("t", "a"))
    totals = database.totals
    for previous in ("a", "b", "c"):
        with pytest.raises(UnknownPrevious, match=r"^a$"):
            add(database, "a", previous)
    assert find(database, "a") is None
    assert database.totals == totals
    assert context(database, "c").missing_id == "a"
    add(database, "a")
    assert len(context(database, "c").items) == 6
    database.check()


@pytest.mark.parametrize("progress", [ResponseProgress.FINISHED, ResponseProgress.RUNNING])
def test_response_that_continues_a_deleted_or_foreign_one_is_refused(make_database, progress):
    database = make_database()
    add(database, "a")
    add(database, "b", "a")
    add(database, "theirs", tenant="other")
    do(database, lambda state: state.delete_response("t", "a"))
    for previous, missing in (("a", "a"), ("b", "a"), ("theirs", "theirs")):
        with pytest.raises(UnknownPrevious, match=f"^{missing}$"):
            add(database, "c", previous, progress=progress)
    assert find(database, "c") is None
    database.check()


def test_running_response_is_finished_after_its_previous_one_is_deleted(make_database):
    database = make_database()
    add(database, "a")
    running = add(database, "b", "a", progress=ResponseProgress.RUNNING)
    do(database, lambda state: state.delete_response("t", "a"))
    done = replace(running, progress=ResponseProgress.FINISHED)
    assert do(database, lambda state: state.finish_response("t", done, None)) is True
    assert context(database, "b").missing_id == "a"
    database.check()


def test_stored_cycle_of_responses_has_an_end(make_database):
    """Older versions could be made to store one."""
    database = make_database()
    add(database, "a")
    add(database, "b", "a")
    add(database, "c", "b")
    with database.transaction() as tables:
        tables.execute("UPDATE objects SET previous_id = 'b' WHERE id = 'a'")
    assert ids(context(database, "b")) == ["a-in", "a-out", "b-in", "b-out"]
    assert context(database, "b").missing_id == "b"
    with pytest.raises(TooLarge, match="a chain of responses must have at most 10000"):
        context(database, "c")
    with pytest.raises(TooLarge):
        add(database, "d", "c")
    assert do(database, lambda state: state.delete_response("t", "a")) is True


def test_chain_is_limited_in_length(make_database, monkeypatch):
    monkeypatch.setattr(operations, "MAX_CHAIN", 3)
    database = make_database()
    for id, previous in (("a", None), ("b", "a"), ("c", "b")):
        add(database, id, previous)
    assert len(context(database, "b").items) == 4
    with pytest.raises(TooLarge):  # before anybody has waited for what cannot be kept
        context(database, "c")
    with pytest.raises(TooLarge):
        add(database, "d", "c")
    assert find(database, "c") is not None
    assert find(database, "d") is None
    database.check()


def test_newest_items_of_a_long_chain_are_read(make_database):
    database = make_database()
    add(database, "root")
    add(database, "leaf", "root")
    length = len(items("leaf-in")[0].body) + len(items("leaf-out")[0].body)
    assert ids(context(database, "leaf", max_bytes=length - 1)) == ["leaf-out"]
    found = context(database, "leaf", max_bytes=2 * length - 1)
    assert (ids(found), found.is_whole) == (["root-out", "leaf-in", "leaf-out"], False)
    whole = context(database, "leaf", max_bytes=2 * length)
    assert (len(whole.items), whole.is_whole, whole.missing_id) == (4, True, None)


def test_running_response_is_finished_once(make_database):
    database = make_database()
    add(database, "a", progress=ResponseProgress.RUNNING)
    assert context(database, "a").progress is ResponseProgress.RUNNING
    done = StoredResponse("a", b'{"done":1}', input=items("in"), events=b"events")
    assert do(database, lambda state: state.finish_response("t", done, None)) is True
    assert do(database, lambda state: state.finish_response("t", done, None)) is False
    assert find(database, "a") == FoundResponse(b'{"done":1}', [], ResponseProgress.FINISHED)
    found = do(database, lambda state: state.find_events("t", "a", 3))
    assert found == FoundEvents(ResponseProgress.FINISHED, [EventPack(0, b"events")])
    assert do(database, lambda state: state.find_events("t", "b", 0)) is None
    do(database, lambda state: state.delete_response("t", "a"))
    assert do(database, lambda state: state.finish_response("t", done, None)) is False
    database.check()


def test_second_response_with_an_id_is_not_added(make_database):
    database = make_database()
    do(database, lambda state: state.add_conversation("t", "c", b"", []))
    add(database, "a")
    other = StoredResponse("a", b"new", items("new"))
    assert do(database, lambda state: state.add_response("t", other, "c")) is False
    assert find(database, "a").body == b"{}"
    assert do(database, lambda state: state.conversation_context("t", "c", 100)).items == []
    assert do(database, lambda state: state.add_response("other", other, None)) is True
    database.check()


def test_conversation_grows_with_its_responses(make_database):
    database = make_database()
    do(database, lambda state: state.add_conversation("t", "c", b"one", items("first")))
    response = StoredResponse("r", b"{}", items("in"), items("out"))
    do(database, lambda state: state.add_response("t", response, "c"))
    other = StoredResponse("s", b"{}", items("other"))
    assert do(database, lambda state: state.add_response("t", other, "gone")) is True
    found = do(database, lambda state: state.conversation_context("t", "c", 10**6))
    assert ids(found) == ["first", "in", "out"]
    assert do(database, lambda state: state.update_conversation("t", "c", b"longer")) is True
    assert do(database, lambda state: state.find_conversation("t", "c")) == b"longer"
    assert do(database, lambda state: state.find_item("t", "c", "in")) == items("in")[0].body
    assert do(database, lambda state: state.delete_item("t", "c", "in")) is True
    assert do(database, lambda state: state.delete_item("t", "c", "in")) is False
    assert do(database, lambda state: state.find_item("t", "c", "in")) is None
    assert do(database, lambda state: state.add_items("t", "c", items("more"))) is True
    found = do(database, lambda state: state.conversation_context("t", "c", 10**6))
    assert ids(found) == ["first", "out", "more"]
    assert ids(context(database, "r")) == ["in", "out"]
    database.check()
    assert do(database, lambda state: state.delete_conversation("t", "c")) is True
    database.check()


@pytest.mark.parametrize("ascending", [True, False])
def test_conversations_are_listed_in_the_order_of_creation(make_database, ascending):
    database = make_database()
    names = ["b", "a", "d", "c"]
    for name in names:
        do(database, lambda state: state.add_conversation("t", name, name.encode(), items("i")))  # noqa: B023
    do(database, lambda state: state.add_conversation("other", "x", b"{}", []))
    do(database, lambda state: state.add_response("t", StoredResponse("r", b"{}"), None))
    do(database, lambda state: state.update_conversation("t", "b", b"new"))
    found, after, has_more = [], None, True
    while has_more:
        page = Page(3, ascending, after)
        listed = do(database, lambda state: state.list_conversations("t", page))  # noqa: B023
        found += listed.items
        after, has_more = found[-1].id, listed.has_more
    assert [one.id for one in found] == (names if ascending else names[::-1])
    assert {one.id: one.body for one in found}["b"] == b"new"
    with pytest.raises(UnknownCursor):
        do(database, lambda state: state.list_conversations("t", Page(3, ascending, "x")))


@pytest.mark.parametrize(
    "operation",
    [
        lambda state: state.find_conversation("t", "c"),
        lambda state: state.update_conversation("t", "c", b""),
        lambda state: state.delete_conversation("t", "c"),
        lambda state: state.add_items("t", "c", items("i")),
        lambda state: state.conversation_context("t", "c", 1),
        lambda state: state.list_items("t", "c", Page(1, True)),
        lambda state: state.find_item("t", "c", "i"),
        lambda state: state.delete_item("t", "c", "i"),
    ],
)
def test_conversation_of_another_tenant_is_unknown(make_database, operation):
    database = make_database()
    do(database, lambda state: state.add_conversation("other", "c", b"{}", items("i")))
    assert not do(database, operation)
    assert do(database, lambda state: state.find_conversation("other", "c")) == b"{}"


def test_items_are_found_by_their_ids(make_database):
    database = make_database()
    add(database, "a")
    add(database, "b", tenant="other")
    do(database, lambda state: state.add_conversation("t", "c", b"{}", items("c-in")))
    newer = StoredResponse("d", b"{}", [StoredItem("a-in", b"newer")])
    do(database, lambda state: state.add_response("t", newer, None))
    many = [*(f"x{number}" for number in range(2000)), "c-in", "a-in", "a-out", "b-in"]
    assert do(database, lambda state: state.find_items("t", many)) == {
        "a-in": b"newer",
        "a-out": items("a-out")[0].body,
        "c-in": items("c-in")[0].body,
    }
