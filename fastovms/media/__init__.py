"""Images that requests bring: where they come from, what they may cost, and how they are decoded.

Knows neither HTTP requests nor models. Every fault is an `InvalidField` that names the part of
the request and tells nothing of the network or the file system.
"""
