"""Embeddings of texts and images, and relevance scores of pairs of texts."""
