"""Meta-LSTM against first-order MAML, torch's LSTM, autograd of its steps one by one, and finite differences."""

import math
from typing import ClassVar

import pytest
import torch
from mlpip_bench.methods.fomaml import FOMAML
from mlpip_bench.methods.meta_lstm import MetaLSTM, MetaLSTMSettings

from builders import make_batch, make_method
from mlpip_bench.inference import coordinate_lstm
from mlpip_bench.inference.coordinate_lstm import CoordinateLSTM, preprocessed, step
from mlpip_bench.testing.cases import Case
from mlpip_bench.testing.conformance import check_method


def make_lstm(hidden: int = 3) -> CoordinateLSTM:
    """With weights that tell coordinates and steps from each other."""
    torch.manual_seed(0)
    lstm = CoordinateLSTM(hidden, 0.2, 0.9).double()
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return lstm


def set_constant(lstm: CoordinateLSTM, rate: float, kept: float) -> None:
    """Gates that see nothing."""
    with torch.no_grad():
        lstm.gate_weight.zero_()
        lstm.gate_bias.copy_(torch.logit(torch.tensor([rate, kept], dtype=torch.float64)).clamp(max=50.0))


def start_of(tasks: int = 2, coordinates: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(tasks, coordinates, generator=generator, dtype=torch.float64).requires_grad_()


def coupled(psi: torch.Tensor) -> torch.Tensor:
    """A loss in which coordinates see each other, with gradients of many magnitudes."""
    scales = torch.logspace(0, -8, psi.shape[1], dtype=torch.float64)
    return (psi * scales).square().sum(1) + (psi * scales).sum(1).sin()


@pytest.fixture(params=[8_192, 5], ids=["all at once", "in parts"])
def parts(request, monkeypatch):
    """Of 14 coordinates."""
    monkeypatch.setattr(coordinate_lstm, "_COORDINATES_AT_ONCE", {"cpu": request.param})


# -- the LSTM of a coordinate ----------------------------------------------------------------------------------------


def test_gradients_are_given_by_logarithm_and_sign_down_to_e_to_the_minus_10():
    tiny = math.exp(-10)
    values = torch.tensor([1.0, -0.5, 100.0, tiny, -2 * tiny, tiny / 2, -tiny / 4, 0.0], dtype=torch.float64)
    first, second = preprocessed(values)
    logs = [0.0, math.log(0.5) / 10, math.log(100) / 10, -1.0, math.log(2) / 10 - 1, -1.0, -1.0, -1.0]
    assert first.tolist() == pytest.approx(logs, abs=1e-12)
    assert second.tolist() == pytest.approx([1.0, -1.0, 1.0, 1.0, -1.0, 0.5, -0.25, 0.0], abs=1e-12)


def test_coordinates_are_a_batch_of_torchs_lstm_and_gates_carry_their_values_before_the_sigmoid():
    lstm = make_lstm()
    cell = torch.nn.LSTMCell(4, 3).double()
    rows = [part.detach() for part in lstm.weight.chunk(4)]
    ordered = torch.cat([rows[0], rows[1], rows[3], rows[2]])  # input, forget, new, output
    with torch.no_grad():
        cell.bias_ih.copy_(ordered[:, 0])
        cell.bias_hh.zero_()
        cell.weight_ih.copy_(ordered[:, 1:5])
        cell.weight_hh.copy_(ordered[:, 5:])
    psi, state, before = start_of().detach().flatten(), None, None
    gates = torch.zeros(14, 2, dtype=torch.float64)
    for _ in range(3):
        gradient, loss = torch.randn(14, dtype=torch.float64), torch.rand(14, dtype=torch.float64)
        inputs = torch.stack([*preprocessed(gradient), *preprocessed(loss)], 1)
        before = cell(inputs, before)
        gates = (
            torch.cat([before[0], psi.unsqueeze(1)], 1) @ lstm.gate_weight[:, :4].T
            + lstm.gate_bias
            + (gates * lstm.gate_weight[:, 4])
        )
        moved = gates[:, 1].sigmoid() * psi - gates[:, 0].sigmoid() * gradient
        psi, state = step(lstm.weights, psi, gradient, loss, state)
        torch.testing.assert_close(psi, moved)
        torch.testing.assert_close(state.hidden.T, before[0])
        torch.testing.assert_close(state.cell.T, before[1])
        torch.testing.assert_close(state.gates.T, gates)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_few_passes_give_the_values_and_derivatives_of_the_steps(steps):
    lstm, start = make_lstm(), start_of()
    found = lstm(start, coupled, steps, create_graph=True)
    psi, state = start.flatten(), None
    for _ in range(steps):
        leaf = psi.detach().view(2, 7).requires_grad_()
        losses = coupled(leaf)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        seen = losses.detach().unsqueeze(1).expand(2, 7).flatten()
        psi, state = step(lstm.weights, psi, gradient.flatten(), seen, state)
    torch.testing.assert_close(found, psi.view(2, 7), rtol=1e-12, atol=0)
    plain = lstm(start, coupled, steps, create_graph=False)
    assert torch.equal(plain, found)
    assert not plain.requires_grad
    wanted = (start, *lstm.parameters())
    weights = torch.rand(2, 7, dtype=torch.float64)
    expected = torch.autograd.grad((psi.view(2, 7) * weights).sum(), wanted, materialize_grads=True, allow_unused=True)
    by_parts = torch.autograd.grad((found * weights).sum(), wanted, materialize_grads=True, allow_unused=True)
    for ours, theirs in zip(by_parts, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("second_order", [False, True])
def test_permuting_coordinates_permutes_the_result(second_order):
    lstm, start, order = make_lstm(), start_of(), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    options = {"create_graph": True, "second_order": second_order}
    found = lstm(start, coupled, 3, **options)
    permuted = lstm(start[:, order], lambda psi: coupled(psi[:, order.argsort()]), 3, **options)
    torch.testing.assert_close(permuted, found[:, order], rtol=1e-12, atol=0)
    assert len({f"{ratio:.6f}" for ratio in (found / start).flatten().tolist()}) == 14


@pytest.mark.parametrize("second_order", [False, True])
def test_constant_gates_decay_weights_on_a_quadratic(second_order):
    """Loss a psi^2 / 2: psi_T = (f - i a)^T psi_0, with derivative f^T where gradients are constants."""
    lstm, start = make_lstm(), start_of()
    set_constant(lstm, 0.3, 0.8)
    a = torch.linspace(0.0, 2.0, 7, dtype=torch.float64)
    end = lstm(start, lambda psi: (a * psi.square()).sum(1) / 2, 5, create_graph=True, second_order=second_order)
    torch.testing.assert_close(end, (0.8 - 0.3 * a) ** 5 * start, rtol=1e-12, atol=1e-15)
    (slope,) = torch.autograd.grad(end.sum(), start)
    expected = (0.8 - 0.3 * a) ** 5 if second_order else torch.full_like(a, 0.8**5)
    torch.testing.assert_close(slope, expected.expand(2, 7), rtol=1e-12, atol=1e-15)


def test_second_derivatives_through_gradients_and_losses_are_those_of_finite_differences():
    lstm = make_lstm()

    def end(start: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        named = dict(zip(dict(lstm.named_parameters()), weights, strict=True))
        arguments = (start, lambda psi: (psi.sin() * psi.roll(1, 1)).sum(1), 3)
        return torch.func.functional_call(lstm, named, arguments, {"create_graph": True, "second_order": True})

    assert torch.autograd.gradcheck(end, (start_of(1, 3), *lstm.parameters()))


# -- the method ------------------------------------------------------------------------------------------------------


def models(kind: str, norm: str) -> tuple[MetaLSTM, FOMAML]:
    """With the same networks, of which no weight is at its initial value."""

    ours = Case(MetaLSTM, kind).method(norm)
    theirs = FOMAML(ours.problem, FOMAML.Settings(3, 3, 0.2)).double()
    theirs.load_state_dict(ours.state_dict(), strict=False)
    return ours, theirs


@pytest.mark.parametrize(
    ("kind", "norm"),
    [("classification", "metabn"), ("classification", "running"), ("classification", "layer"), ("regression", "layer")],
)
def test_with_constant_gates_it_is_first_order_maml(kind, norm):
    ours, theirs = models(kind, norm)
    set_constant(ours.optimizer, 0.2, 1.0)
    tasks = Case(MetaLSTM, kind).batch()
    for mode in (True, False):
        found, expected = (m.train(mode).amortize(tasks.support).psi.mean for m in (ours, theirs))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    losses = [m.train().loss(tasks) for m in (ours, theirs)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)
    slopes = [
        torch.autograd.grad(loss, (*m.network.parameters(), *m.likelihood.parameters()))
        for loss, m in zip(losses, (ours, theirs), strict=True)
    ]
    for found, expected in zip(*slopes, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_second_order_has_the_gradient_of_finite_differences():
    class SecondOrder(MetaLSTM):
        xfail_checks: ClassVar = {}

        def __init__(self, problem, settings):
            super().__init__(problem, MetaLSTMSettings(second_order=True))

    (result,) = check_method(SecondOrder, ["gradient"])
    assert result.status == "passed", result.detail


def test_second_order_changes_no_prediction():
    tasks = make_batch()
    found = [make_method("meta_lstm", second_order=second).double().train() for second in (False, True)]
    torch.testing.assert_close(*(m.amortize(tasks.support).psi.mean for m in found), rtol=1e-10, atol=1e-12)


def test_gates_start_where_the_settings_say():
    method = make_method("meta_lstm", inner_rate=0.05, kept=0.9, test_steps=1).double().eval()
    psi = method.network.flat(method.network.initial(1, 3)).detach().requires_grad_()
    tasks = make_batch(1)
    losses, _ = method.network.losses(method.network.unflatten(psi), tasks.support)
    (gradient,) = torch.autograd.grad(losses.sum(), psi)
    found = method.amortize(tasks.support).psi.mean
    torch.testing.assert_close(found, 0.9 * psi.detach() - 0.05 * gradient, rtol=0.02, atol=1e-3)


def test_frozen_parameters_neither_move_nor_decay():
    method = make_method("meta_lstm", kept=0.5).double().train()
    method.network.backbone.requires_grad_(False)
    q = method.amortize(make_batch().support)
    adapted = method.network.unflatten(q.psi.mean)
    for name, parameter in method.network.named_parameters():
        same = [torch.equal(own, parameter) for own in adapted[name]]
        assert same == [name.startswith("backbone.")] * 3, name


@pytest.mark.parametrize(
    ("field", "value"),
    [("train_steps", 1), ("test_steps", -1), ("inner_rate", 1.0), ("inner_rate", 0.0), ("kept", 1.0), ("hidden", 0)],
)
def test_settings_that_make_no_sense_are_refused(field, value):
    with pytest.raises(ValueError, match=field.split("_")[0]):
        MetaLSTMSettings(**{field: value})
