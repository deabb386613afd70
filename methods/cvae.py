"""C-VAE: a conditional variational autoencoder of single views, the paper's baseline in view reconstruction.

psi: the latent vector of an image whose label is the view's angle.
q: factorized Gaussian from Versa's networks. At test it is inferred from the given views, and decoded at the
angles that are asked for, at the mean of q.
Reference: Kingma, Rezende, Mohamed & Welling, NIPS 2014 (model M2, labels given); Gordon et al., ICLR 2019,
section 5.3: architectures identical to Versa's, trained in batch mode.
Objective: the negative evidence lower bound per view (C.1 with one view for D). Every view is a data point of
its own: its encoder, its angle and a latent with a standard normal prior explain that view alone, and nothing
asks the latent to know the other views.

Differences from the paper: none that are known. It leaves open, and here is chosen:

- the latent's size, Versa's, 256;
- the weight of the KL, 1;
- several given views, which are pooled by Versa's network, although training has shown it one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.distributions import Distribution, Normal

from mlpip_bench.inference.gaussian import gaussian_model
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import elbo
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.inference.variational import BoundSettings, GaussianPrior
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class CVAESettings(BoundSettings):
    """Settings of the C-VAE: those of its bound, with one sample of the latent."""

    samples: int = 1
    eval_samples: int = 1


class CVAE(Method[Normal]):
    """Autoencoder of views that is conditioned on their angle."""

    reference = "Kingma et al. 2014, Semi-Supervised Learning with Deep Generative Models (NIPS); Gordon et al. 2019"
    psi = "Gaussian over the latent vector of a view"
    handles = ("reconstruction",)
    Settings = CVAESettings
    xfail_checks: ClassVar = {"loss_mean_over_points": "its loss is a mean over all views, the given ones too"}
    settings: CVAESettings
    search_space: ClassVar = {**Method.search_space, "beta": LogUniform(0.01, 1.0)}

    def __init__(self, problem: Problem, settings: CVAESettings) -> None:
        super().__init__(problem, settings)
        self.model = gaussian_model(problem, dropout=False)
        self.prior = GaussianPrior(learned=False)

    def amortize(self, support: Labeled) -> Posterior[Normal]:
        """The latent's q, from the given views and their angles."""
        angles, _ = self.model.features(support.x)
        return Posterior(self.model.posterior(angles, support))

    def predictive(self, q: Posterior[Normal], query_x: Tensor) -> Distribution:
        """The latent decoded at other angles."""
        angles, _ = self.model.features(query_x)
        samples = self.settings.samples if self.training else self.settings.eval_samples
        return self.model.predictive(angles, q.psi, samples, fixed_noise=not self.training)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Negative evidence lower bound per view, each view a task by itself."""
        views = batch.merged
        single = Labeled(views.x.flatten(0, 1).unsqueeze(1), views.y.flatten(0, 1).unsqueeze(1), views.way)
        angles, _ = self.model.features(single.x)
        psi = self.model.posterior(angles, single)
        conditional = self.model.predictive(angles, psi, self.settings.samples, fixed_noise=False)
        return -elbo(conditional, single, psi, self.prior(psi.mean), self.settings.kl_weight(1)).mean()
