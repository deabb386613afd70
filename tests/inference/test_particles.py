"""Empirical posteriors against numpy and loops over particles."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from builders import SMALL, make_batch
from mlpip_bench.inference import particles
from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.gradient_steps import AdaptedNetwork
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Posterior, Problem
from mlpip_bench.inference.particles import Particles


def q(event: tuple[int, ...] = (3, 2)) -> Particles:
    return Particles(torch.randn(2, 5, *event, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


@pytest.mark.parametrize("event", [(), (4,), (3, 2)])
def test_moments_and_shapes_are_those_of_the_points(event):
    some = q(event)
    assert (some.batch_shape, some.event_shape, some.count) == ((2,), event, 5)
    np.testing.assert_allclose(some.mean, some.values.numpy().mean(1))
    np.testing.assert_allclose(some.variance, some.values.numpy().var(1))


def test_draws_are_particles_of_their_own_task_each_equally_often():
    some = Particles(torch.arange(10.0).view(2, 5))
    torch.manual_seed(0)
    drawn = some.rsample((4000,))
    for task in range(2):
        values, counts = drawn[:, task].unique(return_counts=True)
        assert values.tolist() == some.values[task].tolist()
        assert (counts / 4000 - 0.2).abs().max() < 4 * math.sqrt(0.2 * 0.8 / 4000)


def test_a_point_has_the_share_of_the_particles_that_are_there():
    values = torch.tensor([[[1.0, 2.0], [1.0, 2.0], [3.0, 2.0]], [[0.0, 0.0], [1.0, 2.0], [5.0, 5.0]]])
    found = Particles(values).log_prob(torch.tensor([1.0, 2.0]).expand(2, 2)).exp()
    torch.testing.assert_close(found, torch.tensor([2 / 3, 1 / 3]))
    assert Particles(values).log_prob(torch.tensor([7.0, 7.0]).expand(2, 2)).tolist() == [-math.inf] * 2


def test_a_mixture_is_the_mean_of_what_each_network_gives_alone():
    torch.manual_seed(0)
    problem = Problem(SMALL, "metabn", 3)
    network, batch = AdaptedNetwork(problem).double().eval(), make_batch(2)
    count, width = 3, network.flat(network.initial(1, 3)).shape[-1]
    values = network.flat(network.initial(1, 3)) + 0.3 * torch.randn(2, count, width, dtype=torch.float64)
    of_support = network.in_groups(
        particles.repeated(batch.support, count),
        lambda part, own: (
            parameters := network.unflatten(particles.folded(values)[own]),
            network.losses(parameters, part)[1],
        ),
    )
    found = particles.mixture(
        Likelihood(problem),
        particles.network_outputs(network, Posterior(Particles(values), of_support.norm_statistics), batch.query.x),
        count,
    )
    for task in range(2):
        alone = []
        for m in range(count):
            one = batch.task(task)
            psi = values[task, m].unsqueeze(0)
            _, statistics = network.losses(network.unflatten(psi), one.support)
            logits = network.outputs(Posterior(Delta(psi, 1), statistics), one.query.x)
            alone.append(Categorical(logits=logits).probs[0])
        torch.testing.assert_close(found.probs[task], torch.stack(alone).mean(0))


def test_fixed_noise_is_always_the_same_in_as_many_dimensions_as_a_network_has():
    like = torch.zeros((), dtype=torch.float64)
    first = particles.noise(10, 115_000, fixed=True, like=like)
    torch.manual_seed(3)
    assert torch.equal(first, particles.noise(10, 115_000, fixed=True, like=like))
    assert first.dtype == torch.float64
    assert first.mean(0).abs().max() == 0  # opposite pairs
    assert abs(first.square().mean() - 1) < 5 * math.sqrt(2 / first.numel() * 2)
    assert not particles.noise(1, 7, fixed=True, like=like).any()
    assert particles.noise(3, 7, fixed=True, like=like).shape == (3, 7)


def test_noise_of_training_comes_from_the_generator_of_torch():
    like = torch.zeros(())
    torch.manual_seed(1)
    first = particles.noise(4, 9, fixed=False, like=like)
    second = particles.noise(4, 9, fixed=False, like=like)
    torch.manual_seed(1)
    assert torch.equal(first, particles.noise(4, 9, fixed=False, like=like))
    assert not torch.equal(first, second)
