"""Guesses the next tokens, which one step of the model then verifies.

Drafts come from the text so far (`prompt_lookup`), from a smaller model (`draft_model`) or from a
grammar; `Drafting` chooses. Whether a guess was right is decided by the sampler.
"""
