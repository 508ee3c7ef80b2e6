from __future__ import annotations

import pytest

from fastovms.client.http_client import HttpClient
from fastovms.client.model_list import first_model
from fastovms.client.request_failed import RequestFailed
from fastovms.client.target import Target
from tests.client.scripted_server import Script, scripted_server


@pytest.mark.parametrize(("models", "name"), [(["a", "b"], "a"), ([], None), ([5], None)])
async def test_the_first_that_is_listed(models: list[str], name: str | None) -> None:
    with scripted_server(Script(models=models)) as url:
        client = HttpClient(Target.from_url(url))
        if name is None:
            with pytest.raises(RequestFailed, match="/v1/models lists none"):
                await first_model(client)
        else:
            assert await first_model(client) == name
        await client.close()
