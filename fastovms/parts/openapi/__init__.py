"""Describes the API to programs and people: the OpenAPI document, and the page `/docs` that shows
it. The descriptions are derived from the types of request and response bodies."""
