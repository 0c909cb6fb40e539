"""Drafters trained on the answers of the very model that they are to draft for."""
