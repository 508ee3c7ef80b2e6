"""Reads the query parameters of the Responses API, which all take `include`."""

from __future__ import annotations

from fastovms.api.responses.input.response_fields import check_include
from fastovms.api.wire.url_query import UrlQuery
from fastovms.http.routing.messages import Request


class Query(UrlQuery):
    """The parameters of one request.

    Raises:
        RequestError: there are too many, or `include` has a value that is not known.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        check_include(self.texts("include"))
