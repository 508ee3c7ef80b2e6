"""HTTP/1.1 on raw transports. Knows no LLM."""

from fastovms.http.access_log import AccessLog
from fastovms.http.auth import ApiKeys, read_api_keys
from fastovms.http.cors import CorsPolicy
from fastovms.http.media_type import JsonOnly
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
from fastovms.http.systemd import Notifier, inherited_sockets

__all__ = [
    "AccessLog",
    "ApiKeys",
    "Check",
    "CorsPolicy",
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
