"""Full context embeddings of matching networks, each step written out; without them nothing has changed."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
import torch
from mlpip_bench.methods.matching_nets import FullContext, MatchingNets, MatchingNetsSettings
from torch import nn

from builders import make_batch, make_method
from mlpip_bench.inference.ordering import ordered
from mlpip_bench.tasks.batch import Labeled
from mlpip_bench.testing.conformance import assert_conforms
from mlpip_bench.utils.settings import key_of

FEATURES = 4


def make(**settings: object):
    return make_method("matching_nets", **settings).double().eval()


def probs(method, tasks) -> torch.Tensor:
    with torch.no_grad():
        return method.predictive(method.amortize(tasks.support), tasks.query.x).probs


def full_context() -> FullContext:
    torch.manual_seed(0)
    return FullContext(FEATURES).double()


def embedded(points: int = 6) -> torch.Tensor:
    return torch.randn(2, points, FEATURES, generator=torch.Generator().manual_seed(points), dtype=torch.float64)


# without full context


def test_by_default_there_is_no_lstm_and_nothing_is_drawn():
    method, tasks = make(), make_batch()
    assert all(name.startswith("backbone.") for name in method.state_dict())
    state = torch.get_rng_state()
    method.train().loss(tasks)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_settings_of_full_context_are_no_part_of_a_key_by_default():
    assert key_of(MatchingNetsSettings()) == {}
    assert key_of(MatchingNetsSettings(context="full", reads=2)) == {"context": "full", "reads": 2}


def test_lstms_of_zeros_leave_plain_matching_networks():
    full, plain, tasks = make(context="full"), make(), make_batch()
    plain.load_state_dict({name: value for name, value in full.state_dict().items() if name.startswith("backbone.")})
    assert (probs(full, tasks) - probs(plain, tasks)).abs().max() > 1e-3
    with torch.no_grad():
        for parameter in full.context.parameters():
            parameter.zero_()
    torch.testing.assert_close(probs(full, tasks), probs(plain, tasks), rtol=0, atol=1e-7)


# the support set


def cell_of(lstm: nn.LSTM, suffix: str) -> nn.LSTMCell:
    """A cell with the weights of one direction."""
    cell = nn.LSTMCell(FEATURES, FEATURES).double()
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    cell.load_state_dict({name: getattr(lstm, f"{name}_l0{suffix}").detach() for name in names})
    return cell


def test_a_support_point_has_the_states_of_both_lstms_at_its_own_place():
    context, points = full_context(), embedded()
    found = points.clone()
    for suffix, places in (("", range(6)), ("_reverse", reversed(range(6)))):
        cell, state = cell_of(context.over_support, suffix), None
        for place in places:
            state = cell(points[:, place], state)
            found[:, place] += state[0]
    torch.testing.assert_close(context.support(points), found)


def test_the_reversed_support_set_swaps_the_directions_of_equal_lstms():
    context, points = full_context(), embedded()
    weights = context.over_support.state_dict()
    context.over_support.load_state_dict({name: weights[name.removesuffix("_reverse")] for name in weights})
    (forth, back), (turned_forth, turned_back) = (
        context.over_support(x)[0].chunk(2, -1) for x in (points, points.flip(1))
    )
    torch.testing.assert_close(turned_forth, back.flip(1))
    torch.testing.assert_close(turned_back, forth.flip(1))
    torch.testing.assert_close(context.support(points.flip(1)), context.support(points).flip(1))


# the query


@pytest.mark.parametrize("reads", [0, 1, 3])
def test_a_query_reads_the_support_set_by_the_equations_written_out(reads):
    context, support, queries = full_context(), embedded(), embedded(3)
    weights = {name: value.detach() for name, value in context.reader.named_parameters()}
    of_input = weights["weight_ih"][:, :FEATURES]
    of_state = torch.cat([weights["weight_hh"], weights["weight_ih"][:, FEATURES:]], 1)  # of [h, r], as in Eq. 3
    bias = weights["bias_ih"] + weights["bias_hh"]
    found = context.query(queries, support, reads)
    for task in range(2):
        for number in range(3):
            f = h = queries[task, number]
            c = torch.zeros(FEATURES, dtype=torch.float64)
            for _ in range(reads):
                scores = torch.stack([h @ g for g in support[task]]).exp()
                r = sum(score / scores.sum() * g for score, g in zip(scores, support[task], strict=True))
                i, forget, candidate, o = (of_input @ f + of_state @ torch.cat([h, r]) + bias).split(FEATURES)
                c = forget.sigmoid() * c + i.sigmoid() * candidate.tanh()
                h = o.sigmoid() * c.tanh() + f
            torch.testing.assert_close(found[task, number], h)


# all of it


@torch.no_grad()
def test_the_vote_is_by_cosines_of_embeddings_in_context():
    method, tasks = make(context="full", reads=2), make_batch()
    features, statistics = method.backbone(tasks.support.x)
    support = ordered(Labeled(features, tasks.support.y, 3), training=False)
    assert not torch.equal(support.y, tasks.support.y)  # no LSTM reads it in the order of its classes
    g = method.context.support(support.x)
    f = method.context.query(method.backbone(tasks.query.x, statistics)[0], g, 2)
    attention = (10 * torch.cosine_similarity(f.unsqueeze(2), g.unsqueeze(1), dim=-1)).softmax(-1)
    torch.testing.assert_close(probs(method, tasks), attention @ support.one_hot)


def test_training_reads_each_task_in_an_order_of_its_own():
    method, tasks = make(context="full").train(), make_batch()
    torch.manual_seed(0)
    first, again = (method.amortize(tasks.support).psi.mean[..., -3:].argmax(-1) for _ in range(2))
    assert not torch.equal(first, again)
    assert not torch.equal(first[0], first[1])


@dataclass(frozen=True)
class FullSettings(MatchingNetsSettings):
    context: Literal["none", "full"] = "full"


class Full(MatchingNets):
    """With full context by default, as the conformance suite checks a method."""

    Settings = FullSettings
    xfail_checks: ClassVar = {
        "support_order": "LSTMs read the support set in an order",
        "unequal_shots": "LSTMs read the support set in an order",
    }


def test_full_context_conforms_but_for_the_order_of_the_support_set():
    assert_conforms(Full)


@pytest.mark.parametrize("wrong", [{"context": "half"}, {"context": "full", "reads": -1}, {"reads": 3}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        MatchingNetsSettings(**wrong)
