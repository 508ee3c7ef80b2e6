"""Images and documents of requests: enforces allowed sources and limits, and decodes them.

Every error about them is an `InvalidField` that names the part of the request and reveals nothing
of the network or the file system.
"""
