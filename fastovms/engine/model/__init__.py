"""The model on its device: rewritten for paged attention, compiled, and run step by step.

`PagedModel` takes `StepInputs` and gives logits. It knows no sequences, no requests and no
sampling.
"""
