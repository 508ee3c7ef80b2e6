"""The layers of the package: which top-level package or file may import which."""

from __future__ import annotations

RANKS = (
    {"backend_stats", "grammar_tree", "json_types", "quoting", "request_fields", "system"},
    {"errors", "params"},
    {"gguf", "grammar", "setting", "text"},
    {"config"},
    {"server_config"},
    {"backend", "extensions", "fair_queue", "state", "telemetry"},
    {"engine", "http"},
    {"backends"},
    {"api"},
    {"parts"},
    {"service"},
    {"app"},
    {"cli"},
)  # fmt: skip
"""The top-level packages and files, the lowest first. Each imports from lower ranks and from
itself, never from its own rank."""

LIBRARIES = {
    "text": {"errors", "grammar_tree", "json_types", "params", "system.disk"},
    "grammar": {"errors", "grammar_tree", "json_types", "params"},
    "gguf": {"errors", "params", "request_fields", "system.disk"},
    "engine.kernels": {"engine.jit"},
}
"""Folders that do not import the server, with all that they import besides themselves."""

CHAT = ("http.server", "api.chat", "backends.paged.backend")
"""The modules that answer a plain chat, with their imports."""

MAX_CHAT_FILES = 90
MAX_CHAT_LINES = 27_700
"""The greatest number of lines of these modules. Lower the limits when the code shrinks."""

NEEDED_PARTS = {
    "decisions": {"responses"},
    "decode_kernels": {"adapters", "comparison", "tuning"},
    "doctor": {
        "decode_kernels",
        "embeddings",
        "images",
        "postgres",
        "speech",
        "speech_out",
        "tuning",
    },
    "embeddings": {"media"},
    "genai": {"comparison", "drafts", "grammars"},
    "load_test": {"client"},
    "ollama": {"embeddings", "several_models"},
    "openapi": {
        "adapters",
        "batches",
        "decisions",
        "embeddings",
        "images",
        "messages",
        "ollama",
        "responses",
        "speech",
        "speech_out",
    },
    "images": {"media"},
    "speech": {"media"},
    "state_transfer": {"postgres"},
}
"""The parts that another part imports."""

USERS_OF_PARTS = {"app", "cli"}
"""The layers that combine parts. Others get the parts as arguments."""
