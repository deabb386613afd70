"""One file a meta-learner, each a plugin of the ML-PIP interface."""
