"""Plain implementations of the suite's work, as the users of other libraries write it.

Each is a function of a network of torch's own layers, a batch of tasks and a number of inner steps, which yields the
queries' logits with their labels: of one task, or of all tasks at once. Its caller takes the loss of what is yielded
before it asks for more, as their loops do. Inside ``torch.no_grad`` nothing is differentiated through inner steps.

``higher`` is a dependency of the suite. learn2learn and easyfsl are not installed: learn2learn is a source package that
needs Cython, gym and qpth, and easyfsl needs torchvision. Their loops are written here with the operations of theirs.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import higher
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_, vmap
from torch.nn import functional as F

from mlpip_bench.tasks.batch import TaskBatch

INNER_RATE = 0.1
Logits: TypeAlias = Iterator[tuple[Tensor, Tensor]]
Peer: TypeAlias = Callable[[nn.Module, TaskBatch, int], Logits]


def tasks_of(batch: TaskBatch) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Support images and labels, query images and labels, of one task after the other."""
    return zip(batch.support.x, batch.support.y, batch.query.x, batch.query.y, strict=True)


def maml_of_higher(network: nn.Module, batch: TaskBatch, steps: int) -> Logits:
    """As in higher's example, maml-omniglot.py."""
    second_order = torch.is_grad_enabled()
    inner = torch.optim.SGD(network.parameters(), lr=INNER_RATE)
    for support_x, support_y, query_x, query_y in tasks_of(batch):
        options = {"copy_initial_weights": not second_order, "track_higher_grads": second_order}
        with higher.innerloop_ctx(network, inner, **options) as (adapted, optimizer):
            for _ in range(steps):
                with torch.enable_grad():
                    loss = F.cross_entropy(adapted(support_x), support_y)
                optimizer.step(loss)
            yield adapted(query_x), query_y


def maml_of_learn2learn(network: nn.Module, batch: TaskBatch, steps: int) -> Logits:
    """As in learn2learn's example, maml_omniglot.py: a clone of the network for each task, and its ``adapt``."""
    second_order = torch.is_grad_enabled()
    for support_x, support_y, query_x, query_y in tasks_of(batch):
        with torch.enable_grad():
            learner = _clone(network)
            for _ in range(steps):
                loss = F.cross_entropy(learner(support_x), support_y)
                gradients = torch.autograd.grad(
                    loss, list(learner.parameters()), retain_graph=second_order, create_graph=second_order
                )
                _update(learner, gradients)
        yield learner(query_x), query_y


def _clone(module: nn.Module) -> nn.Module:
    """learn2learn's ``clone_module``: the same module, with copies of its parameters that have a gradient."""
    clone = module.__new__(type(module))
    clone.__dict__ = module.__dict__.copy()
    clone._parameters = {name: None if p is None else p.clone() for name, p in module._parameters.items()}
    clone._buffers = module._buffers.copy()
    clone._modules = {name: _clone(child) for name, child in module._modules.items()}
    return clone


def _update(learner: nn.Module, gradients: tuple[Tensor, ...]) -> None:
    """learn2learn's ``maml_update``: parameters are replaced, not changed in place."""
    each = iter(gradients)
    for module in learner.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = parameter - INNER_RATE * next(each)


def maml_of_torch_func(network: nn.Module, batch: TaskBatch, steps: int) -> Logits:
    """As in torch's tutorials on ``torch.func``: one task is a function, which ``vmap`` maps over all.

    Running statistics are changed in place, which ``vmap`` cannot do; torch's function for that leaves them out.
    """
    replace_all_batch_norm_modules_(network)
    learned = dict(network.named_parameters())

    def logits(parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        return functional_call(network, parameters, images)

    def loss(parameters: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits(parameters, images), labels)

    def of_a_task(support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        adapted = learned
        for _ in range(steps):
            gradients = grad(loss)(adapted, support_x, support_y)
            adapted = {name: value - INNER_RATE * gradients[name] for name, value in adapted.items()}
        return logits(adapted, query_x)

    yield vmap(of_a_task)(batch.support.x, batch.support.y, batch.query.x), batch.query.y


def protonets_of_a_flat_batch(network: nn.Module, batch: TaskBatch, steps: int) -> Logits:
    """The images of all tasks go through the network as one batch."""
    images = batch.merged.x
    features = network(images.flatten(0, 1)).unflatten(0, images.shape[:2])
    yield _squared_distances(features, batch), batch.query.y


def protonets_of_a_loop(network: nn.Module, batch: TaskBatch, steps: int) -> Logits:
    """The images of one task after the other, support set and queries together."""
    for index in range(batch.support.tasks):
        task = TaskBatch(batch.support.task(index), batch.query.task(index))
        yield _squared_distances(network(task.merged.x[0]).unsqueeze(0), task), task.query.y


def _squared_distances(features: Tensor, batch: TaskBatch) -> Tensor:
    """Logits; classes come in order, with as many support images each."""
    support = batch.support.y.shape[1]
    prototypes = features[:, :support].unflatten(1, (batch.support.way, -1)).mean(2)
    return -torch.cdist(features[:, support:], prototypes).square()


def protonets_of_easyfsl(network: nn.Module, batch: TaskBatch, steps: int) -> Logits:
    """As easyfsl's ``PrototypicalNetworks``: prototypes label by label, then the queries; distances are not squared."""
    for support_x, support_y, query_x, query_y in tasks_of(batch):
        features = network(support_x)
        labels = range(len(torch.unique(support_y)))
        prototypes = torch.cat([features[torch.nonzero(support_y == label)].mean(0) for label in labels])
        yield -torch.cdist(network(query_x), prototypes), query_y


MAML: dict[str, Peer] = {
    "higher": maml_of_higher,
    "learn2learn": maml_of_learn2learn,
    "torch.func": maml_of_torch_func,
}
PROTONETS: dict[str, Peer] = {
    "flat batch": protonets_of_a_flat_batch,
    "loop": protonets_of_a_loop,
    "easyfsl": protonets_of_easyfsl,
}
