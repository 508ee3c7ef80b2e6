"""Writes JSON schemas as rules for XGrammar, the compiler of grammars within OpenVINO GenAI.

`json_rules` is all that others need. It knows what llguidance allows, and nothing of pipelines.
"""
