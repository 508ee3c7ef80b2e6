"""Puts the parts together: models are loaded, and a server or a batch of lines runs on them."""
