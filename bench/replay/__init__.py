"""Plays real texts through the real engine at real cost, to see what drafts gain.

A model with random weights computes each step, and then the token that the text has next wins:
drafts are accepted as often as the text allows, and steps take as long as the model does.
"""
