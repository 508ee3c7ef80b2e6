"""The endpoints `/chat/completions` and `/tokenize`.

They prepare a chat, run it and write its answer. Responses are a room of their own.
"""
