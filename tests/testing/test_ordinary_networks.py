"""Networks that people have: batch norm, leaky ReLU, poolings that need real images, a buffer with prototypes."""

import itertools
import re

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from builders import invoke
from mlpip_bench import registry
from mlpip_bench.benches.family import DataRequest
from mlpip_bench.inference.distributions import Delta, linear_outputs
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.testing.checks import training
from mlpip_bench.testing.conformance import check_method

TINY = (3, 32, 32)


class Ordinary(Method[Delta]):
    """Prototypes over a network of its own, for images of three channels that four poolings leave something of."""

    reference = "Nobody et al. 2020, An Ordinary Network"
    psi = "point mass at the class means"

    def __init__(self, problem, settings):
        super().__init__(problem, settings)
        widths = [3, 4, 4, 4, 4]
        self.network = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, padding=1, bias=False), self.norm(b), nn.LeakyReLU(0.1), nn.MaxPool2d(2)
                )
                for a, b in itertools.pairwise(widths)
            )
        )

    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels)

    def features(self, x):
        return self.network(x.flatten(0, 1)).flatten(1).unflatten(0, x.shape[:2])

    def amortize(self, support):
        means = support.class_means(self.features(support.x))
        return Posterior(Delta(torch.cat([means, -means.square().sum(-1, keepdim=True) / 2], -1), event_dim=2))

    def predictive(self, q, query_x):
        return Categorical(logits=linear_outputs(self.features(query_x), q.psi.mean), validate_args=False)

    def loss(self, batch):
        return -self.predictive(self.amortize(batch.support), batch.query.x).log_prob(batch.query.y).mean()


def statuses(plugin: type[Method], checks=None) -> dict[str, str]:
    return {r.name: r.status for r in check_method(plugin, checks, kind="classification", shape=TINY)}


def test_an_ordinary_network_passes_on_images_of_its_bench_and_its_batch_norm_is_named():
    results = check_method(Ordinary, kind="classification", shape=TINY)
    not_passed = {r.name: r.status for r in results if r.status not in ("passed", "not applicable")}
    assert not_passed == {"loss_mean_over_tasks": "expected deviation"}
    (deviation,) = (r.detail for r in results if r.status == "expected deviation")
    assert "ordinary batch norm (network.0.1, network.1.1, network.2.1, network.3.1)" in deviation


def test_without_the_shape_of_its_bench_it_cannot_be_checked():
    (result,) = check_method(Ordinary, ["posterior"])
    assert result.status == "failed"


class Summed(Ordinary):
    def loss(self, batch):
        return super().loss(batch) * batch.support.tasks


class Joint(Ordinary):
    """Support set and queries in one pass, so that batch norm sees each query twice where it is asked twice."""

    def loss(self, batch):
        points = batch.merged
        features, shots = self.features(points.x), batch.support.y.shape[1]
        means = batch.support.class_means(features[:, :shots])
        psi = torch.cat([means, -means.square().sum(-1, keepdim=True) / 2], -1)
        logits = linear_outputs(features[:, shots:], psi)
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch.query.y.flatten())


def test_batch_norm_excuses_no_other_fault():
    assert statuses(Summed, ["loss_mean_over_tasks"]) == {"loss_mean_over_tasks": "failed"}
    found = statuses(Joint, ["loss_mean_over_tasks", "loss_mean_over_points"])
    assert set(found.values()) == {"expected deviation"}


class Kinks(registry.method("protonets")):
    """A loss with a kink every 2e-7 along a parameter, whose gradient is exact wherever there is one."""

    period = 4e-7

    def __init__(self, problem, settings):
        super().__init__(problem, settings)
        self.position = nn.Parameter(torch.zeros(3))

    def loss(self, batch):
        turns = self.position.sum() / self.period
        return super().loss(batch) + self.period * (turns - turns.detach().floor() - 0.5).abs()


class WrongSign(Kinks):
    def loss(self, batch):
        loss = super().loss(batch)
        return loss - 2 * (self.position.sum() - self.position.sum().detach())  # worth 0, of slope -2


def test_the_gradient_check_is_right_at_kinks(monkeypatch):
    (result,) = check_method(Kinks, ["gradient"])
    assert result.status == "passed", result.detail
    (result,) = check_method(WrongSign, ["gradient"])
    assert result.status == "failed"
    assert result.detail.startswith("slope along position: ")
    monkeypatch.setattr(training, "_STEPS", (1e-6,))  # which the kinks are nearer than
    (result,) = check_method(Kinks, ["gradient"])
    assert result.status == "failed"


class BufferOfPrototypes(Ordinary):
    def norm(self, channels):
        return nn.Identity()

    def amortize(self, support):
        q = super().amortize(support)
        self.register_buffer("prototypes", q.psi.mean.detach())
        return q

    def predictive(self, q, query_x):
        return Categorical(logits=linear_outputs(self.features(query_x), self.prototypes), validate_args=False)


def test_a_network_that_keeps_a_task_on_the_module_learns_what_to_do():
    results = {r.name: r for r in check_method(BufferOfPrototypes, kind="classification", shape=TINY)}
    kept = results["evaluation_keeps_state"]
    assert kept.status == "failed"
    assert kept.detail.startswith("evaluation changes what the module holds: prototypes. What was inferred from a task")
    assert "belongs in the Posterior" in kept.detail
    state = results["state_round_trip"]
    assert state.status != "failed" or "a buffer that holds a task" in state.detail


# -- the command line ------------------------------------------------------------------------------------------------


def test_the_command_checks_on_images_of_a_bench(monkeypatch):
    real = registry.method
    monkeypatch.setattr(registry, "method", lambda name: Ordinary if name == "ordinary" else real(name))
    done = invoke("check", "ordinary", "--bench", "tiny5w1s", COLUMNS="300")
    assert done.exit_code == 0, done.output
    assert re.search(r"loss_mean_over_tasks +│ expected deviation │ .*", done.output)
    assert "1 of 1 methods pass" in done.output
    refused = invoke("check", "exact_linear", "--bench", "tiny5w1s")
    assert refused.exit_code == 2
    assert "tiny5w1s is classification, which exact_linear does not handle" in " ".join(refused.output.split())


@pytest.mark.parametrize("bench", ["omni5w1s", "linear5s"])
def test_shapes_that_are_known_without_data_are_those_of_the_data(bench):
    plugin = registry.family(registry.bench(bench).family)
    family = plugin(plugin.Options())
    shape = family.input_shape(family.load(DataRequest("procedural")))
    assert plugin.image_shape in (None, shape)
