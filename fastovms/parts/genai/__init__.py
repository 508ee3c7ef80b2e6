"""Runs models with `openvino_genai.ContinuousBatchingPipeline` in a separate process.

These are models that the paged engine does not support: models with image input, and architectures
with another kind of state.

The pipeline holds the GIL during every call, steps and image encoding included, and is unusable
after an exception in a step. Therefore it runs in a separate process (`worker`), and structured
outputs are first tried in another process (`grammar_trial`).
"""
