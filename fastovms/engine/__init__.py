"""The engine: continuous batching over OpenVINO's paged attention, token ids in, token ids out.

`Engine` accepts requests and runs steps, each for all running sequences. It does not handle text,
JSON or clients.
"""
