"""Makes tokens of logits: penalties and bans, drawing, log probabilities, broken logits.

`Sampler` serves all rows of a step at once, by kernels compiled with numba. It neither plans steps
nor runs the model.
"""
