"""The page loads nothing from elsewhere, and the document is made once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import threading

import orjson
import pytest

from docs.check_site import loads_of_page, loads_of_style
from fastovms.api.openapi.docs_routes import DocsRoutes, add_docs_routes
from fastovms.http.routing.messages import Request
from fastovms.http.routing.router import Match, Router


def page():
    return DocsRoutes(dict).page(Request("GET", "/docs"))


def test_nothing_is_loaded_from_elsewhere():
    html = page().body.decode()
    assert loads_of_page(html) == []
    assert loads_of_style(re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]) == []
    assert not re.search(r"https?://", html)
    assert re.findall(r"fetch\(([^)]*?)[,)]", html) == [
        'base + target + (query.size ? `?${query}` : ""',
        '"openapi.json"',
    ]


def test_the_policy_lets_this_script_and_this_style_run_and_no_other():
    answer = page()
    assert answer.content_type == "text/html; charset=utf-8"
    fields = dict(answer.headers)
    policy = dict(
        part.strip().split(" ", 1) for part in fields["Content-Security-Policy"].split(";")
    )
    html = answer.body.decode()
    for name, directive in (("script", "script-src"), ("style", "style-src")):
        [content] = re.findall(rf"<{name}>(.*?)</{name}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy.pop(directive) == f"'sha256-{digest}'"
    assert policy == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert fields["X-Content-Type-Options"] == "nosniff"
    # What the policy would not let run, and what would let a text of the server be one.
    assert not re.search(r"\son\w+=|style=|innerHTML|insertAdjacentHTML|eval\(", html)


async def test_the_document_is_made_once_and_in_a_thread():
    made_in = []

    def build():
        made_in.append(threading.current_thread())
        return {"openapi": "3.1.1"}

    router = Router()
    add_docs_routes(router, DocsRoutes(build))
    assert not made_in
    match = router.match("GET", "/openapi.json")
    assert isinstance(match, Match)
    ask = lambda: match.handler(Request("GET", "/openapi.json"))  # noqa: E731
    first = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    first.cancel()  # the client leaves
    answers = await asyncio.gather(ask(), ask())
    assert [orjson.loads(answer.body) for answer in answers] == [{"openapi": "3.1.1"}] * 2
    [thread] = made_in
    assert thread is not threading.main_thread()
    with pytest.raises(asyncio.CancelledError):
        await first
