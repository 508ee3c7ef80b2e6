"""Runs models with this project's own engine: loads and tunes a model, and serves requests with it.

It combines the model, the draft model and the grammars; steps are made in `fastovms.engine`.
"""
