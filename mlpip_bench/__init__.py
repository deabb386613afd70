"""Comparative benchmarks of meta-learners as approximate probabilistic inference (ML-PIP)."""

__version__ = "0.1.0"
