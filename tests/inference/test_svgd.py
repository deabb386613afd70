"""Stein variational gradient descent against autograd of its kernel, loops over pairs, and a known posterior."""

import math

import numpy as np
import pytest
import torch

from mlpip_bench.inference.svgd import bandwidth, descend, direction


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel(a: torch.Tensor, b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return torch.exp(-(a - b).square().sum() / h)


def h_by_hand(particles: torch.Tensor) -> torch.Tensor:
    """Median by numpy over all different pairs."""
    count = len(particles)
    pairs = [(particles[i] - particles[j]).square().sum().item() for i in range(count) for j in range(count) if i != j]
    return torch.tensor(float(np.median(pairs)) / math.log(count), dtype=torch.float64)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_bandwidth_is_the_median_between_different_particles(count):
    particles = points(2, count, 3)
    found = bandwidth((particles.unsqueeze(2) - particles.unsqueeze(1)).square().sum(-1))
    torch.testing.assert_close(found, torch.stack([h_by_hand(particles[t]) for t in range(2)]))


@pytest.mark.parametrize("weight", [1.0, 0.2])
@pytest.mark.parametrize("count", [2, 5])
def test_repulsion_is_the_gradient_of_the_kernel_by_autograd(count, weight):
    particles = points(count, 4)
    found, h = direction(particles, torch.zeros_like(particles), weight), h_by_hand(particles)
    for i in range(count):
        total = torch.zeros(4, dtype=torch.float64)
        for j in range(count):
            a = particles[j].clone().requires_grad_()
            total += torch.autograd.grad(kernel(a, particles[i], h), a)[0]
        torch.testing.assert_close(found[i], weight * total / count)


def test_slopes_are_averaged_by_the_kernel():
    particles, slopes = points(5, 4), points(5, 4, seed=1)
    found = direction(particles, slopes, 0.0)
    h = h_by_hand(particles)
    for i in range(5):
        expected = sum(kernel(particles[j], particles[i], h) * slopes[j] for j in range(5)) / 5
        torch.testing.assert_close(found[i], expected)


def test_particles_of_other_tasks_are_not_seen():
    particles, slopes = points(3, 5, 4), points(3, 5, 4, seed=1)
    together = direction(particles, slopes)
    for t in range(3):
        torch.testing.assert_close(together[t], direction(particles[t], slopes[t]))


def test_a_single_particle_goes_along_its_slope():
    assert torch.equal(direction(points(2, 1, 3), points(2, 1, 3, seed=1)), points(2, 1, 3, seed=1))


def test_two_particles_on_a_flat_density_part_along_their_difference():
    center, offset = points(3), points(3, seed=1)
    particles = torch.stack([center + offset, center - offset])
    moved = direction(particles, torch.zeros(2, 3, dtype=torch.float64))
    torch.testing.assert_close(moved[0], -moved[1])
    # h = d^2 / ln 2, so k = 1/2 and the repulsion is 2/h k (psi_1 - psi_2) / 2 with d^2 = 4 |offset|^2.
    torch.testing.assert_close(moved[0], math.log(2) / (4 * offset.square().sum()) * offset)


def test_particles_in_one_place_stay_together_with_a_finite_gradient():
    particles = points(1, 3).expand(4, 3).clone().requires_grad_()
    slopes = points(1, 3, seed=1).expand(4, 3)
    found = direction(particles, slopes)
    torch.testing.assert_close(found, slopes)
    (gradient,) = torch.autograd.grad(found.square().sum(), particles)
    assert gradient.isfinite().all()


def test_derivatives_go_through_the_bandwidth():
    slopes = points(5, 2, seed=1)
    assert torch.autograd.gradcheck(lambda p: direction(p, slopes, 0.7), points(5, 2).requires_grad_())


def quadratic(center: torch.Tensor):
    return lambda psi: (psi - center).square().sum(-1)


def test_a_step_of_one_particle_is_gradient_descent():
    start, center = points(2, 1, 3), points(3, seed=1)
    found = descend(start.clone().requires_grad_(), quadratic(center), [0.1, 0.05], weight=0.3)
    by_hand = start
    for rate in (0.1, 0.05):
        by_hand = by_hand - rate * 2 * (by_hand - center)
    torch.testing.assert_close(found, by_hand)


def test_the_prior_has_the_weight_of_one_point():
    start, flat = points(2, 1, 3), lambda psi: 0 * psi.sum(-1)
    found = descend(start.clone().requires_grad_(), flat, [0.1], weight=0.25, prior_std=2.0)
    torch.testing.assert_close(found, start * (1 - 0.1 * 0.25 / 4))


def test_coordinates_that_do_not_move_stay():
    moving = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    start = points(5, 3).requires_grad_()
    found = descend(start, quadratic(points(3, seed=1)), [0.1] * 3, weight=0.3, prior_std=1.0, moving=moving)
    assert torch.equal(found[:, 1], start[:, 1])
    assert (found != start)[:, [0, 2]].all()


def test_without_a_graph_it_is_the_same_and_detached():
    start = points(2, 4, 3).requires_grad_()
    runs = [
        descend(start, quadratic(points(3, seed=1)), [0.1] * 4, weight=0.3, prior_std=1.0, create_graph=keep)
        for keep in (True, False)
    ]
    torch.testing.assert_close(runs[0].detach(), runs[1], rtol=0, atol=0)
    assert runs[0].requires_grad
    assert not runs[1].requires_grad
    with torch.no_grad():
        again = descend(start, quadratic(points(3, seed=1)), [0.1] * 4, weight=0.3, prior_std=1.0, create_graph=False)
    assert torch.equal(again, runs[1])
    assert start.grad is None


def test_many_steps_recover_gaussians():
    """exp(-loss / weight) is N(mean, std^2) without a prior, around which M particles settle."""
    std, mean = torch.tensor([0.5, 2.0, 0.5, 2.0]).double(), torch.tensor([0.0, 0.0, 3.0, 3.0]).double()
    start = points(4, 30, 1, seed=3) - 1.0

    def losses(x: torch.Tensor) -> torch.Tensor:
        return (x.squeeze(-1) - mean.unsqueeze(-1)).square()

    weight = (2 * std.square()).view(4, 1, 1)
    found = descend(start, losses, [0.3] * 800, weight=weight, create_graph=False).squeeze(-1)
    assert ((found.mean(1) - mean).abs() < 0.02 * std).all()
    assert ((found.std(1, correction=0) / std - 1).abs() < 0.05).all()
