"""Converts chats to prompts and tokens to answers: templates, tokenizers, formats of tool calls and
reasoning, and text streams.

`TextStream` converts a sample's tokens to text deltas, and `output_parser` finds tool calls and
reasoning. The package does not depend on HTTP or the engine.
"""
