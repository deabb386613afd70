"""Methods learn: a minute of training on real characters leads far above chance."""

import pytest

from builders import trained_classifiers
from mlpip_bench.evaluation.metrics import ACCURACY, NLL
from mlpip_bench.evaluation.predict import predict, score
from mlpip_bench.execution.config import RunConfig
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.execution.scheduler import run
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.records.store import load_all
from mlpip_bench.utils.progress import Quiet

ITERATIONS = 60  # of 4 tasks; uniform guessing has accuracy 0.2 and costs log 5 = 1.609 nats

OF_SOME = {"snail": 480}  # it has to learn that the order of points and the labels of classes are irrelevant

NO_BETTER_AT_FIRST = {
    "nonamortized_vi": "its fit to each task needs no training, and its bound does not reward better features",
    "neural_statistician": "its bound does not reward that classes differ, and its divergences have no temperature",
    "fomaml": "after a minute it is above chance in accuracy, and not yet better than guessing in NLL",
}


@pytest.mark.slow
@pytest.mark.parametrize("method", trained_classifiers())
def test_a_short_training_leads_far_above_chance(method, data_root, tmp_path):
    config = RunConfig(
        methods=(method,),
        benches=("omni5w1s",),
        source="real",
        data_root=data_root,
        device="cpu",
        overrides={"*": {"iterations": OF_SOME.get(method, ITERATIONS), "test_tasks": 40, "validation_tasks": 20}},
        results=tmp_path,
    )
    (trial,) = plan_trials(config)
    untrained = predict(trial.build_method(), trial.streams()["test"], 20)
    assert not run([trial], config, Quiet()).failed
    scores = {r.protocol: mean_ci95(r.scores[0].per_task) for r in load_all(tmp_path)}
    accuracy, half_width = scores["accuracy"]
    assert accuracy - half_width > 0.3
    if method not in NO_BETTER_AT_FIRST:
        assert accuracy > sum(score(ACCURACY, untrained)) / 20
        assert scores["nll"][0] < min(1.45, sum(score(NLL, untrained)) / 20)
