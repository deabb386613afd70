"""Budgets that several task families share: fields of the training plan."""

QUICK = {
    "iterations": 2400,
    "tasks_per_batch": 4,
    "train_queries": 5,
    "learning_rate": 1e-3,
    "halve_every": 800,
    "validate_every": 240,
    "validation_tasks": 100,
    "test_tasks": 600,
}
"""Minutes on a laptop's CPU, with images of 28x28."""

SHORT = QUICK | {"iterations": 400, "halve_every": 200, "validate_every": 100}
"""A sixth of that, for images that cost more."""

SHORTEST = QUICK | {
    "iterations": 100,
    "tasks_per_batch": 1,
    "halve_every": 0,
    "validate_every": 100,
    "validation_tasks": 10,
    "test_tasks": 60,
}
"""For images of 84x84, which cost forty times as much as those of 28x28."""

PAPER = {
    "iterations": 80_000,
    "tasks_per_batch": 16,
    "train_queries": 15,
    "learning_rate": 1e-4,
    "validate_every": 1_000,
    "validation_tasks": 600,
    "test_tasks": 600,
}
"""The paper's, on Omniglot."""

PAPER_NATURAL = PAPER | {"iterations": 100_000, "tasks_per_batch": 4}
"""The paper's, on miniImageNet."""
