FEATURES_EXAMPLES = ""


def features() -> None:
    """X."""
