"""The plugins' own tests: what the suite relies on holds, and a number that is known beforehand."""

import torch
from mlpip_bench_example.blobs import Blobs
from mlpip_bench_example.cosine_means import CosineMeans
from mlpip_bench_example.margin import MARGIN
from mlpip_bench_example.tinyconv import TinyConv
from torch.distributions import Categorical

from mlpip_bench.testing import assert_backbone_conforms, assert_conforms, assert_family_conforms


def test_the_method_conforms() -> None:
    assert_conforms(CosineMeans)


def test_the_backbone_conforms() -> None:
    assert_backbone_conforms(TinyConv, (3, 9, 8))


def test_the_data_set_conforms() -> None:
    assert_family_conforms(Blobs)


def test_the_margin_is_the_lead_of_the_first_class() -> None:
    probs = torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]], [[1.0, 0.0, 0.0], [0.4, 0.3, 0.3]]])
    scores = MARGIN.score(Categorical(probs), torch.zeros(2, 2))
    torch.testing.assert_close(scores, torch.tensor([0.45, 0.55]))
