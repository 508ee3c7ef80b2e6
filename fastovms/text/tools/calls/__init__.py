"""Reads the shapes that calls of several formats share: one JSON object, a name and arguments,
elements.

Each module reads one shape and builds its grammar. It does not know the tags around it, which
belong to the formats above.
"""
