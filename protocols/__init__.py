"""One file a rule of measurement."""
