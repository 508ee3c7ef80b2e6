"""Serves HTTP/1.1 on raw transports: from listening sockets to handlers and back.

`HttpServer` serves the routes of a `Router`, after checks that every request must pass. The package
does not depend on models or JSON.
"""

from fastovms.http.access_log import AccessLog
from fastovms.http.gates import ApiKeys, CorsPolicy, JsonOnly, read_api_keys
from fastovms.http.listeners import Notifier, inherited_sockets
from fastovms.http.messages import (
    Check,
    ErrorRenderer,
    Exchange,
    Handler,
    Headers,
    Observer,
    Request,
    Response,
    Stream,
)
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer

__all__ = [
    "AccessLog",
    "ApiKeys",
    "Check",
    "CorsPolicy",
    "Dispatcher",
    "ErrorRenderer",
    "Exchange",
    "Handler",
    "Headers",
    "HttpServer",
    "JsonOnly",
    "Notifier",
    "Observer",
    "Request",
    "Response",
    "Router",
    "Stream",
    "inherited_sockets",
    "read_api_keys",
]
