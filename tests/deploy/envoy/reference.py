"""Computes affinity keys as `deploy/envoy/affinity.lua` must, with a JSON parser."""

from __future__ import annotations

import json
import re
import zlib

_SPACE = re.compile(r"[ \t\r\n]*")


def affinity_key(path: str, session_id: str, text: str) -> str | None:
    """Returns the key of a request whose body is a JSON object."""
    members = raw_members(text)
    conversation = members.get("conversation", "")
    if conversation.startswith("{"):
        conversation = raw_members(conversation).get("id", "")
    in_path = re.search(r"/(?:responses/(?=resp)|conversations/(?=conv))([^/?]+)", path)
    for id in (
        unquoted(conversation),
        unquoted(members.get("previous_response_id", "")),
        in_path[1] if in_path else "",
    ):
        if id:
            digits = re.fullmatch(r"[A-Za-z]+[_-]([0-9a-fA-F]{32})", id)
            return digits[1][:8].lower() if digits else crc(id)
    for name in (
        unquoted(members.get("prompt_cache_key", "")),
        session_id,
        unquoted(members.get("user", "")),
    ):
        if name:
            return crc(name)
    return _key_of_beginning(members)


def _key_of_beginning(members: dict[str, str]) -> str | None:
    system, user = members.get("instructions", ""), ""
    messages = members.get("messages", members.get("input", ""))
    num_user = 4096
    if messages.startswith("["):
        turns = [raw_members(raw) for raw in raw_entries(messages)]
        first = turns[0].get("content", "") if turns else ""
        of_users = [turn.get("content", "") for turn in turns if turn.get("role") == '"user"']
        user = (of_users[0] if of_users else "") or first
        system += first if first != user else ""
    elif messages:
        user = messages
    else:
        user, num_user = members.get("prompt", ""), 512
    if user in ("", "null"):
        return None
    model = members.get("model", "")
    parts = (model.encode(), system.encode()[:1024], user.encode()[:num_user])
    return _crc(b"\n".join(parts))


def crc(text: str) -> str:
    return _crc(text.encode())


def _crc(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def unquoted(raw: str) -> str:
    return raw[1:-1] if raw.startswith('"') else ""


def raw_members(text: str) -> dict[str, str]:
    """Returns the members of an object with their values as they are written."""
    return {json.loads(name): value for name, value in _entries(text, named=True)}


def raw_entries(text: str) -> list[str]:
    """Returns the entries of an array, as they are written."""
    return [value for _, value in _entries(text, named=False)]


def _entries(text: str, *, named: bool) -> list[tuple[str, str]]:
    found, decoder = [], json.JSONDecoder()

    def value_at(start: int) -> int:
        return decoder.raw_decode(text, start)[1]

    position = _after_space(text, _after_space(text, 0) + 1)
    while text[position] not in "}]":
        name = ""
        if named:
            end = value_at(position)
            name, position = text[position:end], _after_space(text, _after_space(text, end) + 1)
        end = value_at(position)
        found.append((name, text[position:end]))
        position = _after_space(text, end)
        if text[position] == ",":
            position = _after_space(text, position + 1)
    return found


def _after_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    assert match is not None
    return match.end()
