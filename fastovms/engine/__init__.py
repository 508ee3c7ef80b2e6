"""Batches requests token by token over OpenVINO's paged attention: integers in, integers out.

`Engine` accepts requests and runs steps, each for all running sequences. It does not handle text,
JSON or clients.
"""
