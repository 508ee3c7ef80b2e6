"""Guesses the next tokens, which one step of the model then verifies.

Drafts come from recent texts (`suffix_index`), from a smaller model (`draft_model`) or from a
grammar; `Drafting` chooses. Whether a guess was right is decided by the sampler.
"""
