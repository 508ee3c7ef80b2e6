"""Logits to tokens: penalties and bans, drawing, log probabilities, logits that are no numbers.

`Sampler` serves all rows of a step at once, by kernels compiled with numba. It neither plans
steps nor runs the model.
"""
