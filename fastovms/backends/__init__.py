"""Runs models: the paged engine of this project, or OpenVINO GenAI in a separate process.

`choice` picks the backend for a model; each one is a `fastovms.backend.GenerationBackend`. Backends
do not depend on HTTP or on request fields.
"""
