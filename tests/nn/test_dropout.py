"""Dropout's noise: how often, how independently and how reproducibly; that of whole blocks is in ``test_fused.py``."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from builders import backbone
from mlpip_bench.nn import dropout, fused
from mlpip_bench.nn.backbones.conv4 import MOST_AT_ONCE

SIZE = (40, 7, 7, 16)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_so_many_are_kept_and_none_has_to_do_with_another(rate):
    found = dropout.kept([3, 4], rate, SIZE, groups=False).reshape(4, 2, -1)
    places = found.reshape(8, -1)
    for kept in places:
        assert stats.binomtest(int(kept.sum()), kept.size, 1 - rate).pvalue > 1e-4
    together = np.corrcoef(places) - np.eye(8)
    assert np.abs(together).max() < 4.5 / np.sqrt(places.shape[1])
    behind = [np.corrcoef(kept[:-1], kept[1:])[0, 1] for kept in places]
    assert np.abs(behind).max() < 4.5 / np.sqrt(places.shape[1])


def test_each_activation_has_16_bits_of_a_generator_whose_numbers_stay():
    integers = np.random.SFC64(7).random_raw(8).tolist()
    values = [integer >> 16 * part & 0xFFFF for integer in integers for part in range(4)]
    found = dropout.kept([7], 0.25, (1, 1, 2, 4), groups=False)
    assert found.ravel().tolist() == [value >= 0.25 * 2**16 for value in values]


def test_a_task_has_its_noise_however_tasks_lie_in_memory():
    rows = dropout.kept([1, 2], 0.3, (3, 2, 2, 5), groups=False)
    groups = dropout.kept([1, 2], 0.3, (3, 2, 2, 5), groups=True)
    assert (groups.reshape(4, 3, 2, 2, 2, 5).transpose(0, 4, 1, 2, 3, 5).reshape(rows.shape) == rows).all()
    assert (rows[:, 3:] == dropout.kept([2], 0.3, (3, 2, 2, 5), groups=False)).all()


@pytest.mark.parametrize(("sides", "windows"), [((4, 6), (2, 3)), ((5, 3), (3, 2)), ((5, 3), (2, 1))])
def test_what_is_dropped_is_0_and_means_stay(sides, windows):
    x = torch.rand(2000, 4, *sides) + 1
    kept = dropout.kept([0], 0.25, (2000, *windows, 4), groups=False)
    found = dropout.drop(x, kept, 0.25)[..., : 2 * windows[0], : 2 * windows[1]]
    x = x[..., : found.shape[2], : found.shape[3]]
    assert ((found == 0) | torch.isclose(found, x / 0.75)).all()
    assert found.mean().item() == pytest.approx(x.mean().item(), rel=0.02)
    place = [found[:, :, place // 2 :: 2, place % 2 :: 2].permute(0, 2, 3, 1) > 0 for place in range(4)]
    for there, expected in zip(place, kept, strict=True):
        assert (there.numpy() == expected[:, : there.shape[1], : there.shape[2]]).all()


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_network_drops_the_same_with_and_without_numba_and_by_any_way(tasks, monkeypatch):
    pytest.importorskip("numba")
    network = backbone("conv4", (1, 28, 28), blocks=3, channels=8, dropout=0.3).build("metabn", dropout=True).train()
    images = torch.rand(tasks, 6, 1, 28, 28)
    assert tasks * 6 * 8 * 14 * 14 * 4 < MOST_AT_ONCE

    def features() -> torch.Tensor:
        torch.manual_seed(5)
        return network(images)[0]

    whole = features()
    monkeypatch.setattr("mlpip_bench.nn.backbones.conv4.MOST_AT_ONCE", 0)
    torch.testing.assert_close(features(), whole, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(fused, "_kernels", lambda: None)
    plainly = features()
    torch.testing.assert_close(plainly, whole, rtol=1e-4, atol=1e-4)
    assert not torch.equal(plainly, whole)
    monkeypatch.setattr(dropout, "draw_seeds", lambda blocks, tasks: [None] * blocks)  # torch's own noise
    monkeypatch.setattr(F, "dropout", lambda x, rate, training: x)
    assert (features() - whole).abs().max() > 0.1
