"""TinyConv: what the suite relies on holds, and it is torch's convolution."""

import torch
from torch.nn import functional as F

from mlpip_bench import registry
from mlpip_bench.testing import assert_backbone_conforms

TINYCONV = registry.backbone("tinyconv")


def test_it_conforms():
    assert_backbone_conforms(TINYCONV, (3, 9, 8))


def test_it_is_a_convolution_over_patches():
    network = TINYCONV((3, 9, 8), TINYCONV.Settings(), "layer")
    images = torch.rand(2, 5, 3, 9, 8)
    filters = network.weight.T.reshape(-1, 3, 4, 4)
    convolved = F.conv2d(images.flatten(0, 1), filters, stride=4).unflatten(0, (2, 5))
    normalized, _ = network.norm(convolved, None)
    torch.testing.assert_close(network(images)[0], F.relu(normalized).flatten(2))
