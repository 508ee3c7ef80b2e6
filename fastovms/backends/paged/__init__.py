"""Runs models with this project's own engine: loads and tunes a model, and serves requests with it.

Combines the model, the draft model and grammars; `fastovms.engine` computes the steps.
"""
