"""Reads the shapes that calls of several formats share: one JSON object, a name and arguments,
elements.

Each module reads one shape and builds its grammar. The tags around it belong to the formats above.
"""
