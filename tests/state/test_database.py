"""A state database: responses, lists, conversations, and random operations on them."""

from __future__ import annotations

import random

import pytest

from fastovms.state.store import (
    FoundResponse,
    Page,
    ResponseProgress,
    StoredItem,
    StoredResponse,
    UnknownCursor,
)
from tests.state.transactions import add, context, do, find, ids, items

# Responses


def test_a_response_is_found_by_its_tenant_only(make_database):
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


def test_a_chain_says_which_response_is_missing(make_database):
    database = make_database()
    add(database, "root")
    add(database, "middle", "root")
    add(database, "leaf", "middle")
    do(database, lambda state: state.delete_response("t", "middle"))
    found = context(database, "leaf")
    assert found.missing_id == "middle"
    assert ids(found) == ["leaf-in", "leaf-out"]


def test_of_a_long_chain_the_newest_items_are_read(make_database):
    database = make_database()
    add(database, "root")
    add(database, "leaf", "root")
    length = len(items("leaf-in")[0].body) + len(items("leaf-out")[0].body)
    assert ids(context(database, "leaf", max_bytes=length - 1)) == ["leaf-out"]
    found = context(database, "leaf", max_bytes=2 * length - 1)
    assert (ids(found), found.is_whole) == (["root-out", "leaf-in", "leaf-out"], False)
    whole = context(database, "leaf", max_bytes=2 * length)
    assert (len(whole.items), whole.is_whole, whole.missing_id) == (4, True, None)


def test_a_running_response_is_finished_once(make_database):
    database = make_database()
    add(database, "a", progress=ResponseProgress.RUNNING)
    assert context(database, "a").progress is ResponseProgress.RUNNING
    done = StoredResponse("a", b'{"done":1}', input=items("in"), events=b"events")
    assert do(database, lambda state: state.finish_response("t", done, None)) is True
    assert do(database, lambda state: state.finish_response("t", done, None)) is False
    assert find(database, "a") == FoundResponse(b'{"done":1}', [], ResponseProgress.FINISHED)
    assert do(database, lambda state: state.response_events("t", "a")) == b"events"
    assert do(database, lambda state: state.response_events("t", "b")) is None
    do(database, lambda state: state.delete_response("t", "a"))
    assert do(database, lambda state: state.finish_response("t", done, None)) is False
    database.check()


def test_a_response_that_a_process_left_running_is_interrupted(make_database, tmp_path):
    path = str(tmp_path / "state.db")
    add(make_database(path=path), "a", progress=ResponseProgress.RUNNING)
    assert find(make_database(path=path), "a").progress is ResponseProgress.INTERRUPTED


def test_a_response_takes_the_place_of_an_older_one_with_its_id(make_database):
    database = make_database()
    add(database, "a")
    add(database, "b", "a")
    do(database, lambda state: state.add_response("t", StoredResponse("a", b"new"), None))
    assert find(database, "a") == FoundResponse(b"new", [], ResponseProgress.FINISHED)
    assert database.totals.num_objects == 2
    database.check()


# Lists


@pytest.mark.parametrize(
    ("page", "expected", "has_more"),
    [
        (Page(2, True), ["0", "1"], True),
        (Page(2, False), ["4", "3"], True),
        (Page(5, True), ["0", "1", "2", "3", "4"], False),
        (Page(2, True, after="2"), ["3", "4"], False),
        (Page(2, False, after="2"), ["1", "0"], False),
        (Page(1, True, after="4"), [], False),
        (Page(9, False, after="4"), ["3", "2", "1", "0"], False),
    ],
)
def test_pages(make_database, page, expected, has_more):
    database = make_database()
    given = items("0", "1", "2", "3", "4")
    response = StoredResponse("r", b"{}", input=given, output=items("out"))
    do(database, lambda state: state.add_response("t", response, None))
    do(database, lambda state: state.add_conversation("t", "c", b"{}", given))
    for listing in (
        lambda state: state.list_input("t", "r", page),
        lambda state: state.list_items("t", "c", page),
    ):
        found = do(database, listing)
        assert (ids(found), found.has_more) == (expected, has_more)


def test_a_page_after_nothing(make_database):
    database = make_database()
    add(database, "a")
    page = Page(1, True, after="a-out")
    with pytest.raises(UnknownCursor):
        do(database, lambda state: state.list_input("t", "a", page))
    assert do(database, lambda state: state.list_input("t", "b", page)) is None


# Conversations


def test_a_conversation_grows_with_its_responses(make_database):
    database = make_database()
    do(database, lambda state: state.add_conversation("t", "c", b"one", items("first")))
    response = StoredResponse("r", b"{}", items("in"), items("out"))
    do(database, lambda state: state.add_response("t", response, "c"))
    do(database, lambda state: state.add_response("t", response, "gone"))
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
def test_there_is_no_such_conversation(make_database, operation):
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


@pytest.mark.parametrize("ascending", [True, False])
def test_pages_of_items_with_one_id_have_an_end(make_database, ascending):
    database = make_database()
    some = [StoredItem(id, body) for id, body in (("x", b"0"), ("x", b"1"), ("y", b"2"))]
    do(database, lambda state: state.add_conversation("t", "c", b"{}", some))
    page = Page(1, ascending, "x")
    found = do(database, lambda state: state.list_items("t", "c", page))
    assert found == ([some[2]] if ascending else [], False)


# Everything, against a plain model


class Model:
    """What the database should hold: objects by (kind, tenant, id)."""

    def __init__(self) -> None:
        self.responses: dict[tuple[str, str], StoredResponse] = {}
        self.conversations: dict[tuple[str, str], list[StoredItem]] = {}

    def chain(self, tenant: str, id: str) -> list[str]:
        turns = []
        next_id: str | None = id
        while next_id is not None and (tenant, next_id) in self.responses:
            response = self.responses[tenant, next_id]
            turns.append([item.id for item in (*response.input, *response.output)])
            next_id = response.previous_id
        return [item for turn in reversed(turns) for item in turn]


@pytest.mark.parametrize("seed", range(2))
def test_random_operations(make_database, clock, seed, tmp_path):
    rng = random.Random(seed)
    path = str(tmp_path / "state.db")
    database = make_database(path=path)
    model = Model()

    def pick() -> tuple[str, str]:
        return rng.choice("tu"), str(rng.randrange(12))

    def some_items() -> list[StoredItem]:
        return items(*(str(rng.randrange(1000)) for _ in range(rng.randrange(4))))

    for number in range(500):
        tenant, id = pick()
        clock.now += rng.randrange(100)
        known = model.conversations.get((tenant, id))
        match rng.randrange(8):
            case 0 | 1:
                parents = [key[1] for key in model.responses if key[0] == tenant and key[1] < id]
                response = StoredResponse(
                    id,
                    b"x" * rng.randrange(3000),
                    some_items(),
                    some_items(),
                    previous_id=rng.choice([None, *parents]),
                    progress=rng.choice([ResponseProgress.RUNNING, ResponseProgress.FINISHED]),
                )
                conversation_id = rng.choice([None, id])
                do(
                    database,
                    lambda s, t=tenant, r=response, c=conversation_id: s.add_response(t, r, c),
                )
                model.responses[tenant, id] = response
                if known is not None and conversation_id is not None:
                    known += [*response.input, *response.output]
            case 2:
                deleted = do(database, lambda s, t=tenant, i=id: s.delete_response(t, i))
                assert deleted == (model.responses.pop((tenant, id), None) is not None)
            case 3:
                new = some_items()
                if known is None:
                    do(
                        database,
                        lambda s, t=tenant, i=id, n=new: s.add_conversation(t, i, b"{}", n),
                    )
                    model.conversations[tenant, id] = new
                else:
                    do(database, lambda s, t=tenant, i=id, n=new: s.add_items(t, i, n))
                    known += new
            case 4:
                item_id = str(rng.randrange(1000))
                do(
                    database,
                    lambda s, t=tenant, i=id, x=item_id: s.delete_item(t, i, x),
                )
                if known is not None:
                    known[:] = [item for item in known if item.id != item_id]
            case 5:
                found = context(database, id, tenant=tenant)
                assert (ids(found) if found else []) == model.chain(tenant, id)
            case 6:
                found = do(database, lambda s, t=tenant, i=id: s.conversation_context(t, i, 10**6))
                assert (None if found is None else list(found.items)) == known
            case 7 if number % 10 == 0:
                database.close()
                database = make_database(path=path)
    assert database.totals.num_objects == len(model.responses) + len(model.conversations)
    database.check()
