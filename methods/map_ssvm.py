"""mAP-SSVM: embeddings whose rankings have a high mean average precision, by a structured hinge loss.

psi: the mean of each class's support embeddings, which have unit length.
q: a point mass. The predictive is a softmax of a query's mean cosine with the support points of each class.
Reference: Triantafillou, Zemel & Urtasun, NeurIPS 2017; loss-augmented inference as in Song, Schwing, Zemel & Urtasun,
ICML 2016.
Objective: no predictive likelihood. Each point of a task ranks all others by cosine, and those of its class should come
first: the mean over points of max over rankings y of [F(y) + epsilon (1 - AP(y))] - F(perfect ranking), with F the
score of a ranking. It is an upper bound of epsilon (1 - AP), and 0 where the classes are separated by a margin.

Differences from their paper:

- Points to rank are those of a task of the bench, 5 classes for example, where theirs are 16 classes of 8 images in
  Omniglot and 8 of 16 in miniImageNet. The preset ``paper`` has as many of a class, at one shot.
- Their code has a further factor of 10 on the augmented score, which the bound has no place for; it is left out.
- With several shots they predict the class that has the highest AP as the relevant one, which is no probability and
  has ties. Here it is the mean cosine; at one shot that is the same class.
- The paper has no probabilities: ``scale``, which makes them, is fixed and not trained.

Differences from the published figure:

Theirs was trained for 20,000 steps on batches of 16 classes of 8 images, in which a point has 120 to rank behind its
own. Under the budget ``quick`` a task of 5 classes has 6 images of each, and so 24 of them: there is less to learn from
in a step, and there are 2,400 steps. The preset ``paper`` has their steps, and as many images of a class.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.rankings import BUDGET, SEARCH_SPACE, CosineRanker, RankingSettings
from mlpip_bench.tasks.batch import Labeled, TaskBatch


class MapSSVM(Method[Delta]):
    """Structured hinge loss of the mean average precision within a task."""

    reference = "Triantafillou et al. 2017, Few-Shot Learning Through an Information Retrieval Lens (NeurIPS)"
    psi = "point mass at the class means of unit embeddings"
    Settings = RankingSettings
    settings: RankingSettings
    search_space: ClassVar = {**Method.search_space, **SEARCH_SPACE}
    presets: ClassVar = {
        "paper": {
            "*": BUDGET,
            "omni": {"train_queries": 7},
            "mini": {"iterations": 25_000, "halve_every": 4_800},  # theirs is 0.75 times the rate every 2,000
        },
    }
    xfail_checks: ClassVar = {"loss_mean_over_points": "points rank each other, so that a second copy moves ranks"}

    def __init__(self, problem: Problem, settings: RankingSettings) -> None:
        super().__init__(problem, settings)
        self.ranker = CosineRanker(problem)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Class means of unit embeddings."""
        return self.ranker.amortize(support)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of mean cosines."""
        return self.ranker.predictive(q, query_x, self.settings.scale)

    def loss(self, batch: TaskBatch) -> Tensor:
        """The best loss-augmented score less that of the perfect ranking, never negative."""
        queries = self.ranker.queries(batch)
        return (queries.best_score(self.settings.epsilon) - queries.perfect_score()).mean()
