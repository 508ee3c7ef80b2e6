"""The ranks of the rooms of the package: which may import which."""

from __future__ import annotations

FOUNDATION = frozenset(
    {
        "backend",
        "backend_stats",
        "config",
        "encoding",
        "errors",
        "fair_queue",
        "grammar_tree",
        "json_lines",
        "json_types",
        "params",
        "quoting",
        "system",
        "telemetry",
    }
)
"""The files at the package's root, and the folders, that all rooms stand on: one room, called
`foundation` here."""

RANKS = (
    {"foundation"},
    {
        "backends.engine_thread",
        "backends.processes",
        "client",
        "engine.model",
        "files",
        "gguf",
        "grammar.lark",
        "grammar.schemas",
        "http.routing",
        "media",
        "ovms",
        "prefix_cache",
        "state",
        "text.scanning",
        "text.templating",
        "text.tokens",
    },
    {
        "api.wire",
        "backends.images",
        "batches",
        "catalog",
        "engine.scheduling",
        "grammar",
        "http.gates",
        "http.parsing",
        "load_test",
        "ray_serve",
        "state.postgres",
        "state.sqlite",
        "terminal",
        "text.tools",
    },
    {
        "backends.model_files",
        "backends.trials",
        "backends.xgrammar",
        "engine.sampling",
        "engine.stored_prefixes",
        "http.connection",
        "state.opening",
        "state.transfer",
        "text.reasoning",
        "ui",
    },
    {"engine.beams", "engine.drafting", "http.listening", "http.observing", "text"},
    {"api.serving", "backends.encoder", "backends.genai", "cli.flags", "engine", "http"},
    {"api.admin", "api.request", "backends.paged"},
    {"api.conversation", "api.files", "api.generation", "backends", "service"},
    {
        "api.batches",
        "api.chat",
        "api.completions",
        "api.embeddings",
        "api.messages",
        "api.ollama",
        "api.responses",
        "api.tokens",
        "app.loading",
    },
    {"api", "api.openapi", "app.batch_service", "app.greeting", "doctor", "supply"},
    {"app", "cli.commands"},
    {"cli"},
)
"""The rooms from the lowest. A room is a folder of the package or of one of its folders (`engine`
stands for the files that lie in it directly), or a file in one. A room imports from lower
ranks and from itself; rooms of one rank do not know each other."""

STRANGERS = ("engine", "http", "media", "state", "text")
"""Folders that know nothing of each other, whatever their ranks."""
