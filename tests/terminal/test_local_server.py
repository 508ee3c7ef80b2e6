from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from fastovms.errors import EngineFailed
from fastovms.terminal.local_server import local_server


def test_it_wants_its_key_and_ends_with_the_block() -> None:
    with local_server(None) as (url, key):
        headers = {"Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"{url}/v1/models", headers=headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert b"demo_model" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(f"{url}/v1/models", timeout=20)
        refused.value.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(request, timeout=20)


def test_why_it_has_not_started_is_said() -> None:
    with (
        pytest.raises(EngineFailed, match="model directory no/such/place does not exist"),
        local_server("no/such/place"),
    ):
        pass
