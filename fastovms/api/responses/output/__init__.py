"""Writes responses: the object, its output items, and the events of its stream.

It is fed with deltas and does not know where they come from, or who keeps them.
"""
