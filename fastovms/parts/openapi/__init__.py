"""Describes the API to programs and people: the OpenAPI document, and the page that shows it.

Requests are described by the types that read them, answers by the types that they are written
from.
"""
