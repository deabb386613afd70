"""Forms in which public data sets are handed on, each of them recognized by one module."""
