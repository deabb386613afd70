"""Few-shot tasks: what a method sees, and how tasks are drawn."""
