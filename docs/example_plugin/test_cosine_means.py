"""The plugin's own test: ``assert_conforms`` lists all that a method breaks."""

from cosine_means import CosineMeans

from mlpip_bench.testing import assert_conforms


def test_conforms() -> None:
    """The method keeps what the comparison relies on."""
    assert_conforms(CosineMeans)
