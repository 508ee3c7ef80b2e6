"""Every state database, against a plain model."""

from __future__ import annotations

import random

import pytest

from fastovms.state.store import ResponseProgress, StoredItem, StoredResponse, UnknownPrevious
from tests.state.transactions import context, do, ids, items


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

    def is_whole(self, tenant: str, id: str | None) -> bool:
        """Whether all is there that is continued by who continues this one."""
        while id is not None:
            if (tenant, id) not in self.responses:
                return False
            id = self.responses[tenant, id].previous_id
        return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_operations_agree_with_a_model(make_database, clock, seed, tmp_path):
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

                def add(s, t=tenant, r=response, c=conversation_id) -> bool:
                    return s.add_response(t, r, c)

                if (tenant, id) not in model.responses and not model.is_whole(
                    tenant, response.previous_id
                ):
                    with pytest.raises(UnknownPrevious):
                        do(database, add)
                    continue
                added = do(database, add)
                assert added == ((tenant, id) not in model.responses)
                if not added:
                    continue
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
    database.do_maintenance()
    assert database.totals.num_objects == len(model.responses) + len(model.conversations)
    database.check()
