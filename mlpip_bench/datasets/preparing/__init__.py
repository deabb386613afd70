"""Makes data sets, on a user's machine, of what public packages hold: ``data prepare``."""
