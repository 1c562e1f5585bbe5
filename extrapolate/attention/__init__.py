"""Attention in bands: the positions of a strategy instead of a model's own, exact, and in blocks."""
