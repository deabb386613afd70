"""Data sources: one file each, found and read through `catalog`."""
