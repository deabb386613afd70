"""Running trials: what was asked for, what is left to do, and who does it."""
