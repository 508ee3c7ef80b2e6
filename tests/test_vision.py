"""The real server process on a vision model, called as its users call it."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.media.pictures import BLUE, corners, encode, png
from tests.paths import TINY_VLM
from tests.real_server import DEADLINE, Server, read_to_end, start_server, stop_server

NAME = TINY_VLM.name

QUESTION = "what?"

PATH_OF_PICTURE = "/pictures/a.png"


@pytest.fixture(scope="module")
def pictures() -> Iterator[str]:
    """A site with one picture, and where it is."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == PATH_OF_PICTURE
            data = png(84, 56) if found else b"nothing"
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.png").write_bytes(png(84, 56))
    (folder / "link.png").symlink_to("/etc/hostname")
    return folder


@pytest.fixture(scope="module")
def server(files: Path) -> Iterator[Server]:
    server = start_server(
        "--allowed-local-media-path",
        str(files),
        "--allowed-media-domains",
        "127.0.0.1",
        "--allow-private-media",
        "--max-image-pixels",
        "100000",
        str(TINY_VLM),
    )
    yield server
    stop_server(server)


@pytest.fixture(params=["/v1", "/v3"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[openai.OpenAI]:
    with server.client(request.param) as client:
        yield client


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*urls: str, question: str = QUESTION) -> dict[str, Any]:
    parts = [*map(picture, urls), {"type": "text", "text": question}]
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 8,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }


ONE, TWO = data_url(png(84, 56)), data_url(encode(corners(), "PNG"))


@pytest.mark.nightly(but=("/v1",))
def test_the_model_sees_the_image(client):
    answers = [
        client.chat.completions.create(**chat(url))
        for url in (ONE, TWO, ONE, data_url(png(84, 56, BLUE)))
    ]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[2]
    assert len(set(texts)) == 3
    alone = client.chat.completions.create(**chat())
    begin_and_end, num_image_tokens = 2, 6
    assert (
        answers[0].usage.prompt_tokens
        == alone.usage.prompt_tokens + begin_and_end + num_image_tokens
    )
    assert answers[0].usage.completion_tokens == 8


def test_streamed_answer_equals_the_whole_one(client):
    fields = chat(ONE, TWO)
    whole = client.chat.completions.create(**fields)
    chunks = list(
        client.chat.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 2, "in pieces"


def test_order_of_images_changes_the_answer(client):
    texts = [
        client.chat.completions.create(**chat(*urls)).choices[0].message.content
        for urls in ((ONE, TWO), (TWO, ONE))
    ]
    assert texts[0] != texts[1]


def test_image_from_each_source_gives_the_same_answer(client, pictures, files):
    texts = {
        client.chat.completions.create(**chat(url)).choices[0].message.content
        for url in (
            ONE,
            f"{files}/a.png",
            f"file://{files}/a.png",
            pictures + PATH_OF_PICTURE,
        )
    }
    assert len(texts) == 1


@pytest.mark.nightly(
    but=(
        "/v1-url5",
        "/v1-{files}/link.png",
        "/v1-http://169",
    )
)
@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.png",
        "data:image/png;base64,xyz",
        "data:image/png;base64,AAAA",
        "data:text/plain;base64,AAAA",
        data_url(png(400, 400)),
        data_url(png(3, 900)),
        "/etc/passwd",
        "file:///etc/passwd",
        "{files}/../a.png",
        "{files}/link.png",
        "{files}/none.png",
        "{files}",
        "http://localhost:{port}/pictures/a.png",
        "http://example.com/a.png",
        "http://169.254.169.254/latest/meta-data",
        "{site}/none.png",
        "{site}@example.com/",
        "http://127.0.0.1:1/a.png",
        "https://127.0.0.1:1/a.png",
        "ftp://127.0.0.1/a.png",
    ],
)
def test_invalid_image_url_is_refused_without_details(client, pictures, files, url):
    port = pictures.rpartition(":")[2]
    given = url if url.startswith("data:") else url.format(files=files, site=pictures, port=port)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**chat(ONE, given))
    message = json.dumps(error.value.body)
    assert "messages[0].content[1]" in message or "aspect ratio" in message
    assert not any(word in message for word in ("Errno", "refused", "Traceback", "No such"))


def start_chat(server: Server) -> socket.socket:
    body = {**chat(ONE), "stream": True, "max_tokens": 1900, "ignore_eos": True}
    del body["extra_body"]
    data = json.dumps(body).encode()
    connection = server.connect()
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    )
    return connection


def pipeline_process(server: Server) -> int:
    """The server's child that runs the pipeline."""
    parent = f"PPid:\t{server.process.pid}\n"
    [pid] = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/status")
        if parent in path.read_text() and b"genai.worker" in (path.parent / "cmdline").read_bytes()
    ]
    return pid


@pytest.mark.nightly
def test_dead_pipeline_ends_the_server_with_its_signal():
    server = start_server(str(TINY_VLM))
    try:
        with start_chat(server) as connection:
            assert b" 200 " in connection.recv(100)
            os.kill(pipeline_process(server), signal.SIGSEGV)
            assert b"ended by SIGSEGV" in read_to_end(connection)
        assert server.process.wait(DEADLINE) == 1
    finally:
        stop_server(server)


@pytest.mark.nightly
def test_sigterm_lets_running_answers_end():
    server = start_server(str(TINY_VLM))
    try:
        worker = pipeline_process(server)
        with start_chat(server) as connection:
            assert b" 200 " in connection.recv(100)
            server.process.send_signal(signal.SIGTERM)
            assert b"data: [DONE]" in read_to_end(connection)
        assert server.process.wait(DEADLINE) == 0
        assert not Path(f"/proc/{worker}").exists()
    finally:
        stop_server(server)
