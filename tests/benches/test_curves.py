"""The families of curves from the command line: who may enter, what is measured, and what options do."""

import numpy as np
import pytest

from builders import family_of, invoke
from mlpip_bench.benches.family import DataRequest
from mlpip_bench.execution.restoring import trial_of
from mlpip_bench.records import store

SMALL = ["--iterations", 4, "--test-tasks", 6, "--set", "validation_tasks=2", "--set", "tasks_per_batch=2"]


@pytest.mark.parametrize("bench", ["sinusoid5s", "gp5s"])
def test_all_default_methods_enter_and_are_measured_by_log_loss_and_squared_error(bench, tmp_path):
    done = invoke("run", "--bench", bench, "--results", tmp_path, *SMALL)
    assert done.exit_code == 0, done.output
    records = store.load_all(tmp_path)
    _, family = family_of(bench)
    assert {(r.method, r.protocol) for r in records} == {
        (method, protocol) for method in family.default_methods for protocol in ("nll", "squared_error")
    }
    assert all(r.inductive for r in records)
    assert {s.unit for r in records for s in r.scores if s.metric == "mse"} == {"squared error per query"}


@pytest.mark.parametrize("method", ["maml", "fomaml", "meta_sgd", "reptile", "anil", "cnp", "exact_gp", "blind"])
def test_methods_of_networks_enter_linear_regression_without_a_posterior_to_compare(method, tmp_path):
    for bench in ("linear5s", "toy5"):
        done = invoke("run", "--methods", method, "--bench", bench, "--results", tmp_path, *SMALL)
        assert done.exit_code == 0, done.output
    assert {r.protocol for r in store.load_all(tmp_path)} == {"nll"}


def test_the_exact_process_is_the_best_on_its_own_curves_whatever_the_kernel(tmp_path):
    for kernel in ("rbf", "matern", "periodic"):
        folder = tmp_path / kernel
        options = ["--data", f"gp.kernel={kernel}", "--data", "gp.noise_std=0.2", "--data", "gp.length_scale=0.4"]
        command = ["run", "--methods", "exact_gp,blind,exact_linear", "--bench", "gp20s", "--protocols", "nll"]
        done = invoke(*command, *options, "--results", folder, *SMALL, "--test-tasks", 200)
        assert done.exit_code == 0, done.output
        means = {}
        for record in store.load_all(folder):
            assert record.data["options"]["kernel"] == kernel
            restored = trial_of(record)
            assert restored.problem.noise_std == 0.2
            assert restored.problem.kernel == restored.family.kernel
            assert restored.family.load(DataRequest()).fingerprint == record.data["fingerprint"]
            means[record.method] = np.mean(record.scores[0].per_task)
        assert min(means, key=means.get) == "exact_gp"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--bench", "sinusoid5s", "--data", "sinusoid.noise_std=0"], ["noise_std must be positive", "got 0"]),
        (["--bench", "gp5s", "--data", "gp.length_scale=-1"], ["length_scale must be positive", "got -1"]),
        (["--bench", "gp5s", "--data", "gp.kernel=cubic"], ["kernel", "rbf", "cubic"]),
        (["--bench", "sinusoid5s", "--methods", "exact_gp"], ["exact_gp needs tasks from a Gaussian process"]),
        (["--bench", "sinusoid5s", "--methods", "protonets"], ["sinusoid5s is regression", "maml"]),
        (["--bench", "sinusoid5w5s"], ["unknown bench"]),
    ],
)
def test_what_does_not_fit_is_said(arguments, says, tmp_path):
    done = invoke("run", "--methods", "blind", *arguments, "--results", tmp_path)
    assert done.exit_code == 2, done.output
    for text in says:
        assert text in " ".join(done.output.split())
