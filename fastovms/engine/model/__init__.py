"""Runs the model on its device: rewrites it for paged attention, compiles it, and computes steps.

`PagedModel` takes `StepInputs` and gives logits. It knows no sequences, no requests and no
sampling.
"""
