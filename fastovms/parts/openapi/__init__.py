"""Describes the API to programs and people: the OpenAPI document, and the page that shows it.

The types that read requests, and from which answers are written, describe them.
"""
