"""Rewrites the graph of an exported model: for paged attention, and for more speed.

It finds out what a graph says of its attention, positions and states, and says what cannot run.
"""
