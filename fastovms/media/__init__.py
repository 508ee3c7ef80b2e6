"""Loads the images of requests: enforces allowed sources and limits, and decodes them.

It does not depend on HTTP or models. Every error is an `InvalidField` that names the part of the
request and reveals nothing of the network or the file system.
"""
