"""Builds requests for gates."""

from __future__ import annotations

from fastovms.http.messages import Headers, Request


def request(path: str = "/v1/x", method: str = "POST", **fields: str) -> Request:
    named = [(name.replace("_", "-"), value) for name, value in fields.items()]
    return Request(method, path, headers=Headers(named))
