"""From a user's folder, list or array file to a data set of the suite."""
