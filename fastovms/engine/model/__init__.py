"""Runs a model on its device: rewrites it for paged attention, compiles it, and computes steps.

`PagedModel` takes `StepInputs` and returns logits. It does not handle sequences, requests or
sampling.
"""
