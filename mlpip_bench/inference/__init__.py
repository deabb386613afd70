"""ML-PIP: the interface of a method, and the numerics that methods share."""
