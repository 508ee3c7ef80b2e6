"""Compares the logits of a rewritten model with those of its export."""
