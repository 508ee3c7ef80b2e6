"""Runs models with this project's own engine: loads and tunes a model, and serves requests with it.

It puts the model, the draft model and the grammars together; how steps are made is not known here.
"""
