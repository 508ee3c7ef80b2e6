"""Builds the graphs, weights and texts of models with random weights, without torch."""
