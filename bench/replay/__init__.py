"""Replays real texts through the engine at real cost, to measure the gain of drafts.

A model with random weights computes each step, then the next token of the text is made the most
likely one: drafts are accepted as often as the text allows, and steps take their real time.
"""
