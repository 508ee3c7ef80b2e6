"""Asks a server which models it has."""

from __future__ import annotations

import json

from fastovms.client.http_client import HttpClient
from fastovms.client.request_failed import RequestFailed


async def first_model(client: HttpClient) -> str:
    """Returns the name of the first model that the server lists.

    Raises:
        RequestFailed: the server cannot be asked, or lists none.
    """
    path = f"{client.target.path}/models"
    answer = await client.ask("GET", path)
    try:
        name = json.loads(answer)["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        name = None
    if not isinstance(name, str):
        raise RequestFailed("no model", f"{path} lists none: name one with --model")
    return name
