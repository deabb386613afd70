"""The training loop that all methods share, and its checkpoints."""
