"""Writes multipart forms as clients send them."""

from __future__ import annotations

from collections.abc import Mapping

BOUNDARY = "xyz"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def part(disposition: str, content: bytes) -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + content + b"\r\n"


def form(
    fields: Mapping[str, str] | None = None, file: bytes | None = b"{}\n", name: str = "a.jsonl"
) -> bytes:
    parts = [part(f'name="{key}"', value.encode()) for key, value in (fields or {}).items()]
    if file is not None:
        parts.append(part(f'name="file"; filename="{name}"', file))
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
