"""Serves HTTP/1.1 on raw transports: from listening sockets to handlers and back.

`HttpServer` serves what a `Router` knows, behind gates that every request passes. It knows no model
and no JSON.
"""

from fastovms.http.gates.auth import ApiKeys, read_api_keys
from fastovms.http.gates.cors import CorsPolicy
from fastovms.http.gates.media_type import JsonOnly
from fastovms.http.listening.systemd import Notifier, inherited_sockets
from fastovms.http.observing.access_log import AccessLog
from fastovms.http.routing.exchange import Exchange, Observer
from fastovms.http.routing.messages import (
    Check,
    ErrorRenderer,
    Handler,
    Headers,
    Request,
    Response,
    Stream,
)
from fastovms.http.routing.router import Router
from fastovms.http.server import HttpServer

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
