"""Loads the images and documents of requests, within the allowed sources and limits.

Every error is an `InvalidField` that names the part of the request and reveals nothing about the
network or the file system.
"""
