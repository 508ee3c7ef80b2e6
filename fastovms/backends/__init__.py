"""Runs models: the paged engine of this project, or OpenVINO GenAI in a process of its own.

`choice` picks the backend for a model; each one is a `fastovms.backend.GenerationBackend`. They
know nothing of HTTP or of a client's fields.
"""
