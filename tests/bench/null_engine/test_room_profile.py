from __future__ import annotations

from bench.null_engine.room_profile import room_shares

STACKS = """\
<module> (bench/null_server.py:173);run (fastovms/app/serve.py:88);run (runners.py:118) 5
_step (/x/bench/null_server.py:117);encode (/x/fastovms/parts/responses/forms.py:9);dumps (a.py:3) 7
run (asyncio/runners.py:118);data_received (fastovms/http/protocol.py:104) 2
select (asyncio/events.py:8) 1
"""


def test_a_stack_counts_for_its_innermost_room() -> None:
    assert room_shares(STACKS.splitlines()) == {
        "app": 5,
        "parts/responses": 7,
        "http": 2,
        "the event loop": 1,
    }
