"""The generator of the page on one's own images is a data set in 30 lines."""

import re
import types

from builders import REPOSITORY
from mlpip_bench.testing import assert_family_conforms


def test_the_plugin_of_the_page_conforms_and_is_short():
    page = (REPOSITORY / "docs" / "my-images.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    module = types.ModuleType("rings")
    exec(code, module.__dict__)
    assert_family_conforms(module.Rings)
