"""Collective times that other people published, each with its source, and how far a prediction is from them."""
