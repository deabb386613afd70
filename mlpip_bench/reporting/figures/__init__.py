"""Figures of records."""
