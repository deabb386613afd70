"""The conformance suite, which ships with the package: what plugins must keep, for third parties too."""

from mlpip_bench.testing.backbones import assert_backbone_conforms
from mlpip_bench.testing.checking import CheckResult
from mlpip_bench.testing.conformance import CHECKS, assert_conforms, check_method
from mlpip_bench.testing.families import assert_family_conforms

__all__ = [
    "CHECKS",
    "CheckResult",
    "assert_backbone_conforms",
    "assert_conforms",
    "assert_family_conforms",
    "check_method",
]
