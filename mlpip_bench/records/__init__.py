"""Records of what was measured, and statistics of them; nothing here imports torch."""
