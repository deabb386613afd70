"""Where the time goes: operations counted by hand, traces that can be read, and a run that does not notice."""

import dataclasses
import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from builders import backbone, budget, invoke, make_batch, make_config, make_method
from mlpip_bench import registry
from mlpip_bench.execution import profiling
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.execution.profiling import count_flop, matmul_rate, profile_trial
from mlpip_bench.execution.trial import Trial
from mlpip_bench.nn import fused
from mlpip_bench.nn.conv_block import ConvBlock
from mlpip_bench.records import store
from mlpip_bench.tasks.batch import Labeled
from mlpip_bench.utils.choices import NORM_MODES
from mlpip_bench.utils.numerics import Numerics
from mlpip_bench.utils.progress import Quiet

TASKS, WAY, SHOTS, QUERIES = 3, 3, 2, 4
SPEC = backbone("conv4", (2, 8, 8), blocks=2, channels=4)
SUPPORT, QUERY = TASKS * WAY * SHOTS, TASKS * WAY * QUERIES  # images
# Of one image: a multiplication and an addition for each pixel, filter, channel and place in the filter.
FIRST, SECOND = 2 * (8 * 8) * 4 * 2 * 9, 2 * (4 * 4) * 4 * 4 * 9
FEATURES = 4 * 2 * 2
HEAD = 2 * FEATURES * WAY
TINY = {"iterations": 2, "tasks_per_batch": 2, "train_queries": 2}


def labeled(points: int) -> Labeled:
    y = torch.arange(WAY).repeat_interleave(points).expand(TASKS, -1)
    return Labeled(torch.rand(TASKS, WAY * points, *SPEC.input_shape), y, WAY)


def flop_of_a_step(name: str, **settings: object) -> int:
    method = make_method(name, way=WAY, spec=SPEC, **settings)
    batch = make_batch(TASKS, WAY, SHOTS, QUERIES, shape=SPEC.input_shape, dtype=torch.float32)
    return count_flop(lambda: method.loss(batch).backward())


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_are_counted_with_their_groups_forward_and_backward(groups, layout):
    x = torch.rand(3, 4, 6, 5).contiguous(memory_format=layout).requires_grad_()
    filters = torch.rand(8, 4 // groups, 3, 3, requires_grad=True)
    by_hand = 2 * 3 * (6 * 5) * 8 * (4 // groups) * 9
    assert count_flop(lambda: F.conv2d(x, filters, padding=1, groups=groups)) == by_hand
    both = count_flop(lambda: F.conv2d(x, filters, padding=1, groups=groups).sum().backward())
    assert both == 3 * by_hand
    filters_alone = count_flop(lambda: F.conv2d(x.detach(), filters, padding=1, groups=groups).sum().backward())
    assert filters_alone == 2 * by_hand


def test_transposed_convolutions_are_counted():
    x, filters = torch.rand(3, 4, 6, 5, requires_grad=True), torch.rand(4, 8, 3, 3, requires_grad=True)
    by_hand = 2 * 3 * (6 * 5) * 4 * 8 * 9  # each pixel that comes in meets each filter
    step = count_flop(lambda: F.conv_transpose2d(x, filters, stride=2).sum().backward())
    assert step == 3 * by_hand


@pytest.mark.parametrize("norm", NORM_MODES)
def test_a_block_counts_as_its_convolution(norm):
    block = ConvBlock(2, SPEC.settings.channels, norm, ceil_mode=SPEC.settings.ceil_mode)
    x = torch.rand(TASKS, 5, *SPEC.input_shape)
    assert count_flop(lambda: block(x, None)) == TASKS * 5 * FIRST


def test_a_training_step_of_prototypical_networks_counts_as_by_hand():
    # The first layer's images want no gradient; class means are a product, whose one factor is constant.
    extractor = (SUPPORT + QUERY) * (2 * FIRST + 3 * SECOND)
    assert flop_of_a_step("protonets") == extractor + 2 * SUPPORT * HEAD + 3 * QUERY * HEAD


@pytest.mark.parametrize("first_order", [False, True])
def test_a_training_step_of_maml_counts_as_by_hand(first_order):
    # Query images go forward and backward through the adapted network, as do the support set's for its statistics
    # (without a use for their logits). Adaptation: forward, and the gradient of filters and of inner activations.
    first, second, head = QUERY * 2, QUERY * 3, QUERY * 3
    first, second, head = first + SUPPORT * 2, second + SUPPORT * 3, head + SUPPORT * 1
    first, second, head = first + SUPPORT * 2, second + SUPPORT * 3, head + SUPPORT * 3
    if not first_order:
        # Through adaptation's forward pass once more; and backward through its backward pass: two products for each of
        # its own. torch makes one of no use, the gradient of the images.
        first, second, head = first + SUPPORT * 1, second + SUPPORT * 2, head + SUPPORT * 2
        first, second, head = first + SUPPORT * (1 + 1), second + SUPPORT * 4, head + SUPPORT * 4
    by_hand = first * FIRST + second * SECOND + head * HEAD
    assert flop_of_a_step("maml", first_order=first_order) == by_hand


def test_gradients_by_leaf_tensors_are_counted():
    leaf, layer = torch.rand(3, 4, requires_grad=True), torch.nn.Linear(4, 5)
    by_hand = 2 * 3 * 4 * 5
    assert count_flop(lambda: torch.autograd.grad(layer(leaf).sum(), leaf)) == 2 * by_hand


def test_the_rate_of_a_product_is_the_time_it_takes(monkeypatch):
    monkeypatch.setattr(profiling, "_median_seconds", lambda work, device: 0.5)
    rate, dtype = matmul_rate(torch.device("cpu"))
    assert (rate, dtype) == (4 * 1024**3, "float32")


def trial(name: str, bench: str = "omni5w1s", **changes: object) -> Trial:
    return plan_trials(make_config(settings={**TINY, **changes}, methods=(name,), benches=(bench,)))[0]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    found = profile_trial(trial("versa"), folder, Quiet())
    assert torch.equal(torch.rand(4), expected), "the global generator was moved"
    return folder, found


def test_training_and_evaluation_are_traced(profiled):
    folder, found = profiled
    files = sorted((folder / "profiles" / "omni5w1s" / "versa").iterdir())
    assert files == sorted(profile.trace for profile in found)
    assert [file.name.split("-", 2)[2] for file in files] == ["evaluation.json.gz", "training.json.gz"]
    # A convolution of support set and queries in each of four blocks, of each task by itself. With numba there is none
    # in the first block, and behind it one for all tasks, but in the second where these have many queries.
    for profile, steps, tasks, with_numba in zip(found, (3, 1), (2, 4), (3 + 3, 3 + 4 + 2), strict=True):
        convolutions = with_numba if fused.usable(torch.zeros(1)) else tasks * 2 * 4
        events = json.loads(gzip.decompress(profile.trace.read_bytes()))["traceEvents"]
        names = [event["name"] for event in events]
        assert names.count("step") == steps
        assert names.count("aten::conv2d") == steps * convolutions
        assert [cost.calls for cost in profile.costs if cost.operation == "aten::conv2d"] == [convolutions]
        assert any("ConvolutionBackward" in name for name in names) == ("training" in profile.title)


def test_costs_are_all_of_the_time_and_in_order(profiled):
    for profile in profiled[1]:
        shares = [cost.share for cost in profile.costs]
        assert sum(shares) == pytest.approx(1)
        assert shares == sorted(shares, reverse=True)
        total = sum(cost.milliseconds for cost in profile.costs)
        for cost in profile.costs:
            assert cost.milliseconds == pytest.approx(cost.share * total)


def test_the_share_of_the_roofline_is_sane(profiled):
    for profile in profiled[1]:
        assert 0 < profile.roofline < 1.5
        assert profile.roofline == pytest.approx(profile.flop / profile.seconds / profile.peak)


def test_evaluation_counts_its_test_tasks(tmp_path):
    # 4 tasks of 5 classes, with 1 shot and 15 queries, forward through blocks of 28, 14, 7 and 4 pixels a side.
    images = 4 * 5 * (1 + 15)
    convolutions = 2 * 9 * 64 * (28**2 * 1 + (14**2 + 7**2 + 4**2) * 64)
    head = 2 * 4 * (5 * 1 * 256 * 5 + 5 * 15 * 256 * 5)  # class means, and logits
    _, evaluation = profile_trial(trial("protonets"), tmp_path, Quiet())
    assert evaluation.flop == images * convolutions + head


def test_a_model_without_parameters_is_profiled(tmp_path):
    exact = trial("exact_linear", "linear5s")
    assert not list(exact.build_method().parameters())
    training, evaluation = profile_trial(exact, tmp_path, Quiet())
    assert training.trace.exists()
    assert evaluation.trace.exists()


def test_the_product_is_of_the_run_s_precision(tmp_path, monkeypatch):
    monkeypatch.setitem(profiling._MATRIX_SIZE, "cpu", 64)
    half = dataclasses.replace(trial("exact_linear", "linear5s"), numerics=Numerics(precision="bf16"))
    found = [profile.conditions for profile in profile_trial(half, tmp_path, Quiet())]
    assert found == [f"cpu, threads: {torch.get_num_threads()}, {dtype}" for dtype in ("bfloat16", "float32")]


def run(folder: Path, *arguments: str):
    command = ["run", "--bench", "omni5w1s", "--source", "procedural", "--results", folder]
    return invoke(*command, *budget(**TINY), *arguments)


def test_a_run_prints_profiles_and_gives_the_scores_that_it_gives_without(tmp_path):
    result = run(tmp_path / "with", "--methods", "protonets", "--profile")
    assert result.exit_code == 0, result.output
    for phase in ("training", "evaluation"):
        assert f"omni5w1s protonets metabn seed 0: {phase}, tasks a step: " in result.stdout
    assert result.stdout.count("ms a step") == result.stdout.count("GFLOP a step") == 2
    assert "_convolution" in result.stdout
    assert run(tmp_path / "without", "--methods", "protonets").exit_code == 0
    with_, without = (
        {(r.key, score.metric, score.model): score.per_task for r in store.load_all(folder) for score in r.scores}
        for folder in (tmp_path / "with", tmp_path / "without")
    )
    assert len(with_) == 4
    assert with_ == without
    assert not (tmp_path / "without" / "profiles").exists()


def test_a_trial_that_cannot_be_profiled_takes_no_other_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(registry.method("maml"), "amortize", lambda self, support: 1 / 0)
    result = run(tmp_path, "--methods", "maml,protonets", "--profile")
    assert result.exit_code == 1
    assert "cannot profile omni5w1s maml metabn seed 0: ZeroDivisionError" in result.output
    assert "omni5w1s protonets metabn seed 0: evaluation" in result.output
