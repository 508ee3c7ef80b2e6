"""What asks for audio is refused where it is wrong, below /v3 by every endpoint that generates."""

from __future__ import annotations

import pytest

from tests.api.chat_models import MESSAGES, chat_model

BODIES = {
    "completions": {"model": "fake", "prompt": "a"},
    "chat/completions": {"model": "fake", "messages": MESSAGES},
    "responses": {"model": "fake", "input": "a"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("modalities", "text", 'modalities must be an array, not "text"'),
        ("modalities", {}, "modalities must be an array, not {}"),
        ("modalities", ["text", 5], "modalities[1] must be a string, not 5"),
        ("modalities", [None], "modalities[0] must be a string, not null"),
        ("audio", "wav", 'audio must be an object, not "wav"'),
        ("audio", [], "audio must be an object, not []"),
        ("audio", True, "audio must be an object, not true"),
        ("audio", {"format": "mp3"}, 'audio.format must be one of wav, pcm16, not "mp3"'),
        ("audio", {"format": 5}, "audio.format must be one of wav, pcm16, not 5"),
        ("chunk_frames", 0, "chunk_frames must be an integer of at least 1, not 0"),
        ("chunk_frames", -1, "chunk_frames must be an integer of at least 1, not -1"),
        ("chunk_frames", 1.0, "chunk_frames must be an integer of at least 1, not 1.0"),
        ("chunk_frames", True, "chunk_frames must be an integer of at least 1, not true"),
        ("chunk_frames", "4", 'chunk_frames must be an integer of at least 1, not "4"'),
    ],
)
async def test_wrong_values(make_api, make_state, path, field, value, message):
    api = make_api(chat=chat_model(), state=make_state())
    body = {**BODIES[path], field: value}
    assert await api.post(f"/v3/{path}", body) == (400, {"error": message})
    assert api.backend.submitted == []
    refuses = path == "chat/completions" and field == "modalities"
    assert (await api.post(f"/v1/{path}", body))[0] == (400 if refuses else 200)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "fields",
    [
        {"modalities": None, "audio": None, "chunk_frames": None},
        {"modalities": ["text"], "audio": {"voice": "a", "format": "wav"}, "chunk_frames": 1},
        {"modalities": [], "audio": {}, "chunk_frames": 2**32 - 1},
        {"audio": {"format": "pcm16"}},
    ],
)
async def test_right_values(make_api, make_state, path, fields):
    for prefix in ("/v1", "/v3"):
        api = make_api(chat=chat_model(), state=make_state())
        status, answer = await api.post(f"{prefix}/{path}", {**BODIES[path], **fields})
        assert status == 200, answer
