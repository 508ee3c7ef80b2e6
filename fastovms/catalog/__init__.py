"""Finds models: directories, GGUF files, graphs of OpenVINO Model Server, models of a hub.

It finds a model's files and what they say about running it (`finder.ModelFinder`), and fetches them
where need be. It does not open the model itself, and knows no backend.
"""
