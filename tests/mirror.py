"""What `tests/` has that is no mirror of the package: tests of whole pieces."""

from __future__ import annotations

WHOLE_PIECES = {
    "api/chat/test_chat_bad_input.py": "the endpoint of chats, given wrong values",
    "api/chat/test_chat_stream.py": "the endpoint of chats, streaming",
    "api/chat/test_chat_told_tools.py": "the endpoint of chats, of models that know no tools",
    "api/responses/test_agents_tools.py": "the endpoint of responses, with tools of agents",
    "api/responses/test_client.py": "the endpoint of responses, used by OpenAI's client",
    "api/responses/test_images.py": "the endpoint of responses, with images",
    "api/responses/test_properties.py": "the endpoint of responses, given random bodies",
    "api/responses/test_refused.py": "the endpoint of responses, given wrong values",
    "api/test_bad_input.py": "all endpoints, given wrong values",
    "api/test_compatibility.py": "all endpoints, against the tables of compatibility",
    "api/test_fields.py": "all endpoints, given right values",
    "api/test_hostile_json.py": "all endpoints, given hostile bodies",
    "api/test_log_fields.py": "all endpoints, and what the access log is told",
    "api/test_per_request_metrics.py": "all endpoints, and the time that answers tell of",
    "api/test_properties.py": "all endpoints, given random bodies",
    "backends/genai/test_real.py": "the backend over the real pipeline",
    "backends/test_contract.py": "every backend, against one contract",
    "engine/model/test_architectures.py": "compiled models of many architectures",
    "engine/model/test_states.py": "a compiled hybrid model",
    "engine/test_beam_blocks.py": "the engine, searching with beams",
    "engine/test_beam_reference.py": "the engine, searching with beams as the reference does",
    "engine/test_draft_reference.py": "the engine with a draft model as the reference is without",
    "engine/test_model_shapes.py": "the engine over models of many shapes",
    "engine/test_reference.py": "the engine, against a reference",
    "gguf/test_served.py": "a server of a GGUF file",
    "http/test_cases.py": "a server, given a table of requests",
    "http/test_clients.py": "a server whose clients leave, stall or flood",
    "http/test_drain.py": "a server that ends",
    "http/test_security.py": "a server with its gates",
    "state/test_bounds.py": "every database, at its limits",
    "state/test_random_operations.py": "every database, against a model",
    "text/test_detection.py": "all formats, found from templates",
    "text/tools/test_any_format.py": "all formats of calls, given random texts",
    "text/tools/test_model_outputs.py": "all formats of calls, given what models write",
    "text/tools/test_peer_outputs.py": "all formats of calls, given what others are tried on",
}
"""The test files below the rooms of `tests/` that have the name of no module, with the whole piece
that each tests. Those in `tests/` itself test the server as a whole."""
