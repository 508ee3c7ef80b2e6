"""Request streams with their exact answers, in addition to those of http_cases.json."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A case. `statuses` are those of all answers in order, including interim ones; [] = none.
    `closed`: whether the server must have closed the connection."""

    id: str
    raw: bytes
    statuses: list[int]
    closed: bool
    body: bytes | None = None
    """Header fields of the first answer."""


def get(
    target: str = "/health", *lines: str, version: str = "1.1", method: str = "GET", host: str = "a"
) -> bytes:
    fields = "".join(f"{line}\r\n" for line in (f"Host: {host}", *lines))
    return f"{method} {target} HTTP/{version}\r\n{fields}\r\n".encode("latin-1")


def post(body: bytes, *lines: str, target: str = "/echo", length: bool = True) -> bytes:
    size = (f"Content-Length: {len(body)}",) if length else ()
    return get(target, *size, *lines, method="POST") + body


def chunked(body: bytes, *lines: str) -> bytes:
    return post(body, "Transfer-Encoding: chunked", *lines, length=False)


OK, CLOSE = False, True

VALID = [
    Case("get", get(), [200], OK, b"ok"),
    Case("get-query", get("/health?a=1&b=%20"), [200], OK, b"ok"),
    Case("get-absolute", get("http://a/health"), [200], OK, b"ok"),
    Case("get-absolute-https", get("HTTPS://a:8000/health?x"), [200], OK, b"ok"),
    Case("get-absolute-ipv6", get("http://[::1]:80/health"), [200], OK, b"ok"),
    Case("get-encoded-path", get("/he%61lth"), [200], OK, b"ok"),
    Case("item", get("/items/x"), [200], OK, b"x"),
    Case("item-encoded-slash", get("/items/a%2Fb"), [200], OK, b"a/b"),
    Case("item-encoded-percent", get("/items/%2525"), [200], OK, b"%25"),
    Case("item-bad-percent", get("/items/%zz"), [200], OK, b"%zz"),
    Case("item-utf8", get("/items/%C3%A9"), [200], OK, "é".encode()),
    Case("version-1.2", get(version="1.2"), [200], OK, b"ok"),
    Case("version-1.0", b"GET /health HTTP/1.0\r\n\r\n", [200], CLOSE, b"ok"),
    Case(
        "version-1.0-keep-alive", get("/health", "Connection: keep-alive", version="1.0"), [200], OK
    ),
    Case("connection-close", get("/health", "Connection: close"), [200], CLOSE, b"ok"),
    Case("connection-close-in-list", get("/health", "Connection: x, Close ,y"), [200], CLOSE),
    Case("leading-crlf", b"\r\n\r\n" + get(), [200], OK, b"ok"),
    Case("crlf-after-post", post(b"x") + b"\r\n" + get(), [200, 200], OK, b"x"),
    Case("host-port", get(host="a.example:8000"), [200], OK),
    Case("host-ipv4", get(host="127.0.0.1:8000"), [200], OK),
    Case("host-ipv6", get(host="[2001:db8::1]:8000"), [200], OK),
    Case("host-empty", get(host=""), [200], OK),
    Case("host-empty-port", get(host="a:"), [200], OK),
    Case("host-underscore", get(host="my_host"), [200], OK),
    Case("field-empty", get("/health", "X-A:"), [200], OK),
    Case("field-obs-text", get("/health", "X-A: \xe9"), [200], OK),
    Case("field-repeated", get("/health", "X-A: 1", "X-A: 2"), [200], OK),
    Case("content-length-underscore", get("/health", "Content_Length: 5"), [200], OK, b"ok"),
    Case("post-empty", post(b""), [200], OK, b""),
    Case("post-no-length", post(b"", length=False), [200], OK, b""),
    Case("post-leading-zeros", post(b"hello", "Content-Length: 005", length=False), [200], OK),
    Case(
        "post-many-zeros", post(b"hello", f"Content-Length: {'0' * 5000}5", length=False), [200], OK
    ),
    Case("post-tab", post(b"hello", "Content-Length:\t5\t", length=False), [200], OK, b"hello"),
    Case("chunked-empty", chunked(b"0\r\n\r\n"), [200], OK, b""),
    Case("chunked-zeros", chunked(b"0005\r\nhello\r\n000\r\n\r\n"), [200], OK, b"hello"),
    Case("chunked-extension", chunked(b"5;a=b\r\nhello\r\n0;c\r\n\r\n"), [200], OK, b"hello"),
    Case("chunked-quoted", chunked(b'5;a="b;c"\r\nhello\r\n0\r\n\r\n'), [200], OK, b"hello"),
    Case("chunked-crlf-data", chunked(b"4\r\n\r\n\r\n\r\n0\r\n\r\n"), [200], OK, b"\r\n\r\n"),
    Case("trailers", chunked(b"5\r\nhello\r\n0\r\nX: y\r\nZ: w\r\n\r\n"), [200], OK, b"hello"),
    Case("trailer-close", chunked(b"0\r\nConnection: close\r\n\r\n") + get(), [200], CLOSE),
    Case(
        "trailer-authorization",
        chunked(b"0\r\nAuthorization: Bearer x\r\n\r\n") + get(),
        [200, 200],
        OK,
    ),
    Case("delete-405", get(method="DELETE"), [405], OK),
    Case("patch-405", get("/echo", method="PATCH"), [405], OK),
    Case("trace-405", get(method="TRACE"), [405], OK),
    Case("post-405-small-body", post(b"hello", target="/health") + get(), [405, 200], OK),
    Case("404", get("/nothing"), [404], OK),
    Case("404-trailing-slash", get("/health/"), [404], OK),
    Case("404-double-slash", get("//health"), [404], OK),
    Case("404-dots", get("/x/../health"), [404], OK),
    Case("404-odd-characters", get('/"<>^{|}\\'), [404], OK),
    Case("404-small-body", post(b"hello", target="/nothing") + get(), [404, 200], OK),
    Case("404-head", get("/nothing", method="HEAD") + get(), [404, 200], OK),
    Case("500", get("/fails") + get(), [500, 200], OK),
    Case("options", get(method="OPTIONS"), [204], OK),
    Case("options-star", get("*", method="OPTIONS"), [204], OK),
    Case("options-404", get("/nothing", method="OPTIONS"), [404], OK),
    Case("options-body", post(b"x").replace(b"POST", b"OPTIONS") + get(), [204, 200], OK),
    Case("head-pipelined", get(method="HEAD") + get("/items/a", method="HEAD"), [200, 200], OK),
    Case("pipeline-slow-first", post(b"1", target="/later") + get() * 3, [200] * 4, OK, b"1"),
    Case("pipeline-16", get() * 16, [200] * 16, OK),
    Case("pipeline-100-quick", get() * 100, [200] * 100, OK),
    Case("pipeline-after-close", get("/health", "Connection: close") + get(), [200], CLOSE),
    Case("pipeline-after-1.0", b"GET /health HTTP/1.0\r\n\r\n" + get(), [200], CLOSE),
    Case("expect-1.0", post(b"x", "Expect: 100-continue").replace(b"1.1", b"1.0"), [200], CLOSE),
    Case("expect-case", post(b"hello", "Expect: 100-Continue"), [200], OK, b"hello"),
    Case(
        "expect-waits",
        get("/echo", "Content-Length: 1", "Expect: 100-continue", method="POST"),
        [100, 408],
        CLOSE,
    ),
    Case("expect-no-body", post(b"", "Expect: 100-continue"), [200], OK, b""),
]

UPGRADES = [
    Case(
        "h2c-get",
        get("/health", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"),
        [200],
        OK,
        b"ok",
    ),
    Case(
        "h2c-chunked",
        chunked(b"5\r\nhello\r\n0\r\n\r\n", "Connection: Upgrade", "Upgrade: h2c") + get(),
        [200, 200],
        OK,
        b"hello",
    ),
    Case(
        "h2c-pipelined",
        post(b"hello", "Connection: Upgrade", "Upgrade: h2c") + get(),
        [200, 200],
        OK,
        b"hello",
    ),
    Case(
        "h2c-keeps-close",
        post(b"hello", "Connection: Upgrade, close", "Upgrade: h2c") + get(),
        [200],
        CLOSE,
        b"hello",
    ),
    Case(
        "h2c-body-is-a-request",
        post(get("/smuggled"), "Connection: Upgrade", "Upgrade: h2c"),
        [200],
        OK,
        get("/smuggled"),
    ),
    Case(
        "websocket",
        get("/health", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        [200],
        OK,
        b"ok",
    ),
    Case("h2c-many", get("/health", "Connection: Upgrade", "Upgrade: h2c") * 50, [200] * 50, OK),
    Case("connect", b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n" + get("/smuggled"), [501], CLOSE),
    Case("preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505], CLOSE),
]

REQUEST_LINE = [
    Case("version-2.0", get(version="2.0"), [505], CLOSE),
    Case("version-0.9-bare", b"GET /health\r\n\r\n", [505], CLOSE),
    Case("version-9.9", get(version="9.9"), [505], CLOSE),
    Case("version-lower", get().replace(b"HTTP", b"http"), [400], CLOSE),
    Case("version-comma", get(version="1,1"), [400], CLOSE),
    Case("version-absent", b"GET /health \r\nHost: a\r\n\r\n", [400], CLOSE),
    Case("method-lower", get(method="get"), [501], CLOSE),
    Case("method-colon", get(method="G:T"), [400], CLOSE),
    Case("method-empty", b" /health HTTP/1.1\r\nHost: a\r\n\r\n", [400], CLOSE),
    Case("target-fragment", get("/health#x"), [400], CLOSE),
    Case("target-star-get", get("*"), [400], CLOSE),
    Case("target-space", get("/a b"), [400], CLOSE),
    Case("target-non-ascii", get("/\xe9"), [400], CLOSE),
    Case("target-query-only", get("?x"), [400], CLOSE),
    Case("target-userinfo", get("http://u:p@a/health"), [400], CLOSE),
    Case("target-ftp", get("ftp://a/health"), [400], CLOSE),
    Case("target-authority", get("a:80"), [400], CLOSE),
    Case("line-long", get("/" + "a" * 17000), [414], CLOSE),
    Case("line-8000", get("/" + "a" * 7980), [404], OK),
    Case("line-spaces", b"GET " + b" " * 20000, [414], CLOSE),
    Case("line-bare-lf", get().replace(b"\r\n", b"\n"), [400], CLOSE),
    Case("line-bare-cr", get().replace(b"\r\n", b"\r"), [400], CLOSE),
    Case("tls-hello-version", b"\x16\x03\x03" + bytes(100), [], CLOSE),
    Case("binary", bytes(range(256)), [400], CLOSE),
    Case("crlf-flood", b"\r\n" * 20000, [400], CLOSE),
]

FIELDS = [
    Case("host-missing", b"GET /health HTTP/1.1\r\n\r\n", [400], CLOSE),
    Case("host-twice", get("/health", "Host: b"), [400], CLOSE),
    Case("host-twice-same", get("/health", "Host: a"), [400], CLOSE),
    Case("host-twice-1.0", get("/health", "Host: b", version="1.0"), [400], CLOSE),
    Case("host-list", get(host="a, b"), [400], CLOSE),
    Case("host-path", get(host="a/b"), [400], CLOSE),
    Case("host-space", get(host="a b"), [400], CLOSE),
    Case("host-port-word", get(host="a:b"), [400], CLOSE),
    Case("host-bracket", get(host="[::1"), [400], CLOSE),
    Case("host-non-ascii", get(host="\xe9"), [400], CLOSE),
    Case("obs-fold", get("/health", "X-A: b\r\n c"), [400], CLOSE),
    Case("space-first-field", b"GET /health HTTP/1.1\r\n Host: a\r\n\r\n", [400], CLOSE),
    Case("name-empty", get("/health", ": b"), [400], CLOSE),
    Case("name-space", get("/health", "X A: b"), [400], CLOSE),
    Case("no-colon", get("/health", "X-A"), [400], CLOSE),
    Case("value-nul", get("/health", "X-A: \0"), [400], CLOSE),
    Case("value-bel", get("/health", "X-A: \x07"), [400], CLOSE),
    Case("value-cr", get("/health", "X-A: a\rb"), [400], CLOSE),
    Case("many", get("/health", *["X-A: b"] * 200), [431], CLOSE),
    Case("large", get("/health", "X-A: " + "b" * 66000), [431], CLOSE),
    Case("large-open", get("/health", "X-A: " + "b" * 70000)[:-4], [431], CLOSE),
    Case("large-name-open", b"GET /health HTTP/1.1\r\n" + b"x" * 70000, [431], CLOSE),
    Case("large-in-sum", get("/health", *["X-A: " + "b" * 1000] * 70), [431], CLOSE),
    Case("authorization-twice", get("/health", "Authorization: a", "Authorization: b"), [400], 1),
]

FRAMING = [
    Case("cl-te", chunked(b"0\r\n\r\n", "Content-Length: 5") + get("/smuggled"), [400], CLOSE),
    Case(
        "te-cl",
        post(b"0\r\n\r\n", "Transfer-Encoding: chunked") + get("/smuggled"),
        [400],
        CLOSE,
    ),
    Case("cl-twice", post(b"hello", "Content-Length: 6"), [400], CLOSE),
    Case("cl-list", post(b"hello", "Content-Length: 5, 5", length=False), [400], CLOSE),
    Case("cl-plus", post(b"hello", "Content-Length: +5", length=False), [400], CLOSE),
    Case("cl-hex", post(b"hello", "Content-Length: 0x5", length=False), [400], CLOSE),
    Case("cl-underscore", post(b"hello", "Content-Length: 1_0", length=False), [400], CLOSE),
    Case("cl-empty", post(b"hello", "Content-Length:", length=False), [400], CLOSE),
    Case("cl-huge", post(b"", "Content-Length: 18446744073709551616", length=False), [400], CLOSE),
    Case("cl-2-64-1", post(b"", "Content-Length: 18446744073709551615", length=False), [413], 1),
    Case("te-gzip-chunked", chunked(b"0\r\n\r\n", "Transfer-Encoding: gzip"), [400], CLOSE),
    Case(
        "te-gzip-list",
        post(b"0\r\n\r\n", "Transfer-Encoding: gzip, chunked", length=False),
        [501],
        CLOSE,
    ),
    Case("te-identity", post(b"", "Transfer-Encoding: identity", length=False), [501], CLOSE),
    Case("te-parameter", post(b"", "Transfer-Encoding: chunked;q=1", length=False), [501], CLOSE),
    Case("te-empty", post(b"", "Transfer-Encoding:", length=False), [400], CLOSE),
    Case("body-over", post(b"x" * (1024 * 1024 + 1)), [413], CLOSE),
    Case("body-at-limit", post(b"x" * 1024 * 1024), [200], OK),
    Case("body-over-chunked", chunked(b"100001\r\n" + b"x" * 0x100001), [413], CLOSE),
    Case(
        "body-over-expect",
        post(b"", "Content-Length: 9999999", "Expect: 100-continue", length=False),
        [413],
        CLOSE,
    ),
    Case("404-large-body", post(b"x" * 100_000, target="/nothing"), [404], CLOSE),
    Case("404-chunked-body", chunked(b"1\r\nx\r\n").replace(b"/echo", b"/no"), [404], CLOSE),
    Case(
        "405-expect",
        get("/health", "Content-Length: 5", "Expect: 100-continue", method="POST"),
        [405],
        CLOSE,
    ),
    Case("expect-unknown-head", get("/health", "Expect: magic", method="HEAD"), [417], CLOSE),
    Case("expect-unknown-no-body", get("/health", "Expect: magic"), [417], CLOSE),
    Case("chunk-hex-prefix", chunked(b"0x5\r\nhello\r\n0\r\n\r\n"), [400], CLOSE),
    Case("chunk-plus", chunked(b"+5\r\nhello\r\n0\r\n\r\n"), [400], CLOSE),
    Case("chunk-minus", chunked(b"-1\r\n"), [400], CLOSE),
    Case("chunk-empty-size", chunked(b"\r\nhello\r\n0\r\n\r\n"), [400], CLOSE),
    Case("chunk-overflow", chunked(b"10000000000000000\r\n"), [400], CLOSE),
    Case("chunk-bare-lf", chunked(b"5\nhello\n0\n\n"), [400], CLOSE),
    Case("chunk-long-data", chunked(b"5\r\nhello!\r\n0\r\n\r\n"), [400], CLOSE),
    Case("chunk-lf-end", chunked(b"5\r\nhello\n0\r\n\r\n"), [400], CLOSE),
    Case("chunk-open-extension", chunked(b"5;" + b"a" * 300_000), [400], CLOSE),
    Case("chunk-tiny", chunked(b"1\r\nx\r\n" * 100_000), [400], CLOSE),
    Case("trailer-cl", chunked(b"0\r\nContent-Length: 5\r\n\r\n"), [400], CLOSE),
    Case("trailer-te", chunked(b"0\r\nTransfer-Encoding: chunked\r\n\r\n"), [400], CLOSE),
    Case("trailer-many", chunked(b"0\r\n" + b"X: y\r\n" * 200), [431], CLOSE),
    Case("trailer-large", chunked(b"0\r\nX: " + b"y" * 70_000 + b"\r\n\r\n"), [431], CLOSE),
    Case("trailer-open", chunked(b"0\r\nX: " + b"y" * 400_000), [431], CLOSE),
    Case("good-then-bad-then-good", get() + b"\0\r\n\r\n" + get("/smuggled"), [200, 400], CLOSE),
    Case("slow-then-bad", post(b"1", target="/later") + b"\0\r\n", [200, 400], CLOSE, b"1"),
    Case("body-as-request", post(get("/smuggled")), [200], OK, get("/smuggled")),
    Case("cl-short-then-request", post(b"hello") + get(), [200, 200], OK, b"hello"),
    Case("head-open", get()[:-2], [408], CLOSE),
    Case("head-one-byte", b"G", [408], CLOSE),
    Case("nothing", b"", [], CLOSE),
    Case("body-open", post(b"hello")[:-1], [408], CLOSE),
    Case("chunked-open", chunked(b"5\r\nhel"), [408], CLOSE),
    Case("chunked-no-end", chunked(b"5\r\nhello\r\n"), [408], CLOSE),
]

CASES = [*VALID, *UPGRADES, *REQUEST_LINE, *FIELDS, *FRAMING]
