"""Converts JSON schemas to rules for XGrammar, the grammar compiler in OpenVINO GenAI.

The entry point is `json_rules`. The rules allow the same texts as llguidance.
"""
