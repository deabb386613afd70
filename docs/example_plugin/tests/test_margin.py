"""Margin, by hand."""

import torch
from torch.distributions import Categorical

from mlpip_bench import registry


def test_the_margin_is_the_lead_of_the_most_probable_class():
    (margin,) = registry.protocol("margin").metrics
    probs = torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]], [[1.0, 0.0, 0.0], [0.4, 0.3, 0.3]]])
    scores = margin.score(Categorical(probs), torch.zeros(2, 2))
    torch.testing.assert_close(scores, torch.tensor([0.45, 0.55]))
