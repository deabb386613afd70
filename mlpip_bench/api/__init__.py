"""The Python API: benches, training, evaluation and records in a few lines; the command line does the same by options.

Options are those of ``run``, by the same names (``python -m mlpip_bench run --help``).
"""
