"""Loads images that requests bring: says where they may come from and what they may cost, and
decodes them.

It knows neither HTTP requests nor models. Every fault is an `InvalidField` that names the part of
the request and reveals nothing of the network or the file system.
"""
