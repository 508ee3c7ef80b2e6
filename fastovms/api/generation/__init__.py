"""Turns prompts into pieces of answers: submits, follows and ranks samples, and frames streams.

`TextGeneration` gives deltas to whoever asked. The JSON of an endpoint's answer is not made here.
"""
