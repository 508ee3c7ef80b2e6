"""Backends, which run models: this project's paged engine, or OpenVINO GenAI in a separate process.

`app.choice` picks the backend of a model; each is a `fastovms.backend.GenerationBackend`. Backends
do not depend on HTTP or on request fields.
"""
