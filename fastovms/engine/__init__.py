"""Batches requests token by token over OpenVINO's paged attention: integers in, integers out.

`Engine` takes requests and makes steps, each of which serves all that run. It knows no text, no
JSON and no clients.
"""
