"""Benches: task families, their names, settings and streams."""
