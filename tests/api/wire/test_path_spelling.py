"""Paths of a base URL that is a little off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.wire.path_spelling import ApiPaths

PATHS = ApiPaths()
KNOWN = {"/v1/chat/completions", "/v1/models", "/v3/chat/completions"}


@pytest.mark.parametrize(
    ("path", "tidy"),
    [
        ("/v1/models", "/v1/models"),
        ("//v1/models", "/v1/models"),
        ("/v1//models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1/v1/models", "/v1/models"),
        ("///v1//v1/v1///models//", "/v1/models"),
        ("/models/", "/models"),
        ("//models", "/models"),
        ("/v3/v3/chat/completions/", "/v3/chat/completions"),
        ("/v3/v1/chat/completions", "/v3/v1/chat/completions"),
        ("/v3/v1/v1/chat/completions", "/v3/v1/chat/completions"),
        ("/v3/v3/v1/chat/completions", "/v3/v1/chat/completions"),
        ("/v1/models/org/name", "/v1/models/org/name"),
        ("/v1/models/v1/v1", "/v1/models/v1/v1"),
        ("/v1/models/a%2F%2Fb", "/v1/models/a%2F%2Fb"),
        ("/v1/models/%2F", "/v1/models/%2F"),
    ],
)
def test_paths_of_the_dialects(path: str, tidy: str):
    assert PATHS.tidy(path) == tidy


@pytest.mark.parametrize(
    "path",
    ["", "*", "/", "//", "/health/", "//health", "//metrics", "/v2/models/m/", "//v2", "/x//v1"],
)
def test_other_paths_stay_as_they_are(path: str):
    assert PATHS.tidy(path) == path


@given(st.lists(st.sampled_from(["v1", "v3", "models", "a", "", "%2F"]), max_size=8))
def test_a_second_look_finds_no_more(segments: list[str]):
    tidy = PATHS.tidy("/" + "/".join(segments))
    assert PATHS.tidy(tidy) == tidy


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/chat/completions/", "/v1/chat/completions"),
        ("//chat/completions", "/v1/chat/completions"),
        ("/api/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/chat/completions", "/v1/chat/completions"),
        ("/api/v0/models", "/v1/models"),
        ("/nowhere", None),
        ("/a/b/c/chat/completions", None),
        ("/", None),
    ],
)
def test_advice(path: str, meant: str | None):
    advice = PATHS.advice(path, "", KNOWN.__contains__)
    assert advice == (f"; did you mean {meant}? The base URL ends in /v1" if meant else "")


def test_advice_behind_a_proxy():
    advice = PATHS.advice("/chat/completions", "/llm", KNOWN.__contains__)
    assert advice == "; did you mean /llm/v1/chat/completions? The base URL ends in /llm/v1"
