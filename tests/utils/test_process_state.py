"""What torch itself changes in a process is nobody's fault; what replaces its functions is found."""

import subprocess
import sys

import pytest

BEFORE = "import torch, torch.optim.adamw; from mlpip_bench.utils.process_state import ProcessState; s = ProcessState()"
COMPILER = "import torch._dynamo; torch._dynamo.eval_frame.TorchPatcher.patch()"
REPLACED = "seed = torch.manual_seed; torch.manual_seed = lambda n: seed(n + 1)"
HIDDEN = "torch.optim.AdamW._init_group = lambda *a, **k: None"


@pytest.mark.parametrize(
    ("does", "found"),
    [
        (COMPILER, []),
        (REPLACED, ["torch.manual_seed"]),
        (HIDDEN, ["torch.optim.adamw.AdamW._init_group"]),
    ],
)
def test_functions_that_torch_wraps_are_no_change(does, found):
    script = f"{BEFORE}; {does}; print(*(change.partition(',')[0] for change in s.set_back()))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.split() == found
