"""Cosine means: what the suite relies on holds, and so does a limit that is known."""

import torch

from mlpip_bench import Problem, registry
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.tasks.batch import Labeled
from mlpip_bench.testing import assert_conforms

COSINE = registry.method("cosine_means")


def test_it_conforms():
    assert_conforms(COSINE)


def test_at_a_scale_of_zero_it_guesses():
    identity = registry.backbone("identity")
    vectors = BackboneSpec("identity", identity, identity.Settings(), (4, 1, 1))
    method = COSINE(Problem(vectors, "layer", 3), COSINE.Settings())
    torch.nn.init.zeros_(method.scale)
    support = Labeled(torch.randn(2, 6, 4, 1, 1), torch.arange(3).repeat(2, 2), 3)
    probs = method.predictive(method.amortize(support), torch.randn(2, 5, 4, 1, 1)).probs
    torch.testing.assert_close(probs, torch.full((2, 5, 3), 1 / 3))
