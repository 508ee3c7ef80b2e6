"""Runs models on `openvino_genai.ContinuousBatchingPipeline`, in a separate process.

These are the models that the paged engine does not run: those that take images, and architectures
with another kind of state.

The pipeline holds Python's lock through every call, steps and image encoding included, and does not
survive an exception in a step. So it runs in a separate process (`worker_main`), and structured
outputs are tried out in another (`grammar_trial`) before it gets to see them.
"""
