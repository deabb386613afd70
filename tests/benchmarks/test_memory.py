"""Memory of an evaluation: it must not grow with the number of tasks.

Each evaluation has a process of its own, whose peak Linux keeps as VmHWM. (``ru_maxrss`` would not do: a new
process starts with the peak of the one that started it, here of all benchmarks before.) Images and networks are
smaller than a bench's, for speed; one task's adapted parameters still take 115 kB, its five steps several times that.
"""

import subprocess
import sys
from pathlib import Path

import pytest

STATUS = Path("/proc/self/status")
EVALUATION = """
import sys
from pathlib import Path

import numpy as np
import torch

from mlpip_bench import registry
from mlpip_bench.inference.method import Problem
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.datasets.base import ClassImages
from mlpip_bench.utils.device import keep_freed_memory
from mlpip_bench.evaluation.predict import predict
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.tasks.images import ImagePool, TaskStream

keep_freed_memory()
torch.set_num_threads(1)
images = np.random.default_rng(0).integers(0, 256, (1000, 1, 14, 14), dtype=np.uint8)
data = ClassImages(images, np.full(50, 20), tuple(map(str, range(50))))
stream = TaskStream(ImagePool(data, torch.device("cpu")), TaskShape(5, 1, 2), "memory")
maml = registry.method("maml")
conv4 = registry.backbone("conv4")
spec = BackboneSpec("conv4", conv4, conv4.Settings(channels=32, ceil_mode=True), (1, 14, 14))
problem = Problem(spec, "metabn", 5)
predict(maml(problem, maml.Settings(test_steps=5)), stream, int(sys.argv[1]))
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1])
"""


def peak_kilobytes(tasks: int) -> int:
    """Peak memory of a process that evaluates MAML on so many tasks."""
    command = [sys.executable, "-c", EVALUATION, str(tasks)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.benchmark(group="memory")
@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc/self/status, which Linux has")
def test_evaluation_of_maml_takes_no_more_memory_for_more_tasks(benchmark, keep_ratio):
    few = peak_kilobytes(100)
    many = benchmark.pedantic(peak_kilobytes, (1000,))
    keep_ratio("peak memory of an evaluation of MAML, 5 steps: 1,000 tasks / 100 tasks", many / few, 1.05, "at most")
    assert many <= 1.05 * few, f"{few} kB for 100 tasks, {many} kB for 1,000"
