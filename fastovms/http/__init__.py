"""HTTP/1.1 on raw transports. Knows no LLM."""

from fastovms.http.messages import (
    Check,
    ErrorRenderer,
    Handler,
    Headers,
    Request,
    Response,
    Stream,
)
from fastovms.http.router import Router
from fastovms.http.server import HttpServer
from fastovms.http.state import Exchange, Observer

__all__ = [
    "Check",
    "ErrorRenderer",
    "Exchange",
    "Handler",
    "Headers",
    "HttpServer",
    "Observer",
    "Request",
    "Response",
    "Router",
    "Stream",
]
