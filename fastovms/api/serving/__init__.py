"""Holds the models that are served, with what the API needs beside the backend.

`ServedModels` finds one by its name; each has its tokenizer, its chat formats, its images and
limits. Nothing here belongs to one request.
"""
