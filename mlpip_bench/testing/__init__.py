"""The conformance suite, which ships with the package: what every method must keep, for third parties too."""

from mlpip_bench.testing.checking import CheckResult
from mlpip_bench.testing.conformance import CHECKS, assert_conforms, check_method

__all__ = ["CHECKS", "CheckResult", "assert_conforms", "check_method"]
