"""Readers of data sets: one file each, found through `sources`."""
