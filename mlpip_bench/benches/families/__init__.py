"""Task families that ship with the suite: one plugin a module."""
