"""Models that the suite did not build, under its interface."""

import textwrap

import numpy as np
import pytest
import torch
from torch import nn

import mlpip_bench
from builders import assert_one_error, budget, invoke
from mlpip_bench.records import store
from mlpip_bench.testing import assert_conforms
from mlpip_bench.utils.errors import UserError

MODELS = """
    import functools

    import numpy as np
    import torch
    from torch import nn

    import mlpip_bench as mb

    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 8))
    network.requires_grad_(False).eval()
    normed = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784))


    def of_means(support_x, support_y, query_x, way):
        support, query = network(support_x), network(query_x)
        means = torch.stack([support[support_y == label].mean(0) for label in range(way)])
        return -torch.cdist(query, means).square() / 2


    def probabilities(support_x, support_y, query_x, way):
        return of_means(support_x, support_y, query_x, way).softmax(-1).numpy()


    means = mb.wrap(of_means, outputs="logits", trained_on="nothing", network=network)
    array = mb.wrap(probabilities, outputs="probabilities", trained_on="glyphs", backbone="a linear map")
    undeclared = mb.wrap(of_means, outputs="probabilities", trained_on="nothing")


    def of_nan(support_x, support_y, query_x, way):
        return torch.full((len(query_x), way), torch.nan)


    def of_too_many(support_x, support_y, query_x, way):
        return torch.zeros(len(query_x), way + 1)


    def raises(support_x, support_y, query_x, way):
        raise KeyError("inside")


    def moves(support_x, support_y, query_x, way):
        return normed.train()(query_x)[:, :way]


    def gives_more(support_x, support_y, query_x, way):
        return torch.zeros(len(query_x), way), np.zeros(len(query_x))


    def gives_twice(support_x, support_y, query_x, way):
        return 2 * (np.zeros((len(query_x), way)),)


    def gives_no_chance(support_x, support_y, query_x, way):
        return torch.full((len(query_x), way), -torch.inf)


    def gives_names(support_x, support_y, query_x, way):
        return {"logits": torch.zeros(len(query_x), way)}


    def gives_nothing(support_x, support_y, query_x, way):
        torch.zeros(len(query_x), way)


    more = mb.wrap(gives_more, outputs="logits", trained_on="nothing")
    twice = mb.wrap(gives_twice, outputs="probabilities", trained_on="nothing")
    none_left = mb.wrap(gives_no_chance, outputs="logits", trained_on="nothing")
    names = mb.wrap(gives_names, outputs="logits", trained_on="nothing")
    none = mb.wrap(gives_nothing, outputs="logits", trained_on="nothing")
    # Two of the functions that have no name of their own.
    unnamed = mb.wrap(lambda *task: of_too_many(*task), outputs="logits", trained_on="nothing")
    part = mb.wrap(functools.partial(of_too_many), outputs="logits", trained_on="nothing")
    nan = mb.wrap(of_nan, outputs="logits", trained_on="nothing")
    too_many = mb.wrap(of_too_many, outputs="logits", trained_on="nothing")
    failing = mb.wrap(raises, outputs="logits", trained_on="nothing")
    moving = mb.wrap(moves, outputs="logits", trained_on="nothing", network=normed)
    no_method = 5
    versa = means
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "my_models.py"
    path.write_text(textwrap.dedent(MODELS))
    return path


def run(results, methods: str, *more: object):
    arguments = ("--bench", "omni5w1s", "--source", "procedural", "--results", results, *budget(test_tasks=6), *more)
    return invoke("run", "--methods", methods, *arguments)


def scores(results, method: str, metric: str) -> list[float]:
    (found,) = (
        score.per_task
        for record in store.load_all(results)
        for score in record.scores
        if (record.method, score.metric, score.model) == (method, metric, "best")
    )
    return list(found)


def test_a_network_in_float32_passes_the_checks():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)).eval()

    def of_means(support_x, support_y, query_x, way):
        support, query = network(support_x), network(query_x)
        means = torch.stack([support[support_y == label].mean(0) for label in range(way)])
        return -torch.cdist(query, means).square() / 2

    assert_conforms(mlpip_bench.wrap(of_means, outputs="logits", trained_on="nothing", network=network))


def test_it_is_checked_by_its_place(file):
    result = invoke("check", f"{file}:means", "--bench", "omni5w1s")
    assert result.exit_code == 0, result.output
    assert_one_error(invoke("check", f"{file}:no_method"), "no_method")


def test_it_has_the_scores_of_the_method_that_it_is(file, tmp_path):
    """Class means of a linear map: prototypical networks with the same map as the backbone, by the suite's own code."""
    network = tmp_path / "map.py"
    network.write_text(
        "import torch\nfrom torch import nn\n\n\ndef build(input_shape):\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8))\n"
    )
    result = run(tmp_path / "wrapped", f"{file}:means,{file}:array")
    assert result.exit_code == 0, result.output
    result = run(tmp_path / "own", "protonets", "--backbone", f"{network}:build", "--iterations", 0)
    assert result.exit_code == 0, result.output
    for metric in ("accuracy", "nll"):
        expected = scores(tmp_path / "own", "protonets", metric)
        for name in ("means", "array"):
            np.testing.assert_allclose(scores(tmp_path / "wrapped", name, metric), expected, rtol=1e-5, atol=1e-6)


def test_records_and_tables_say_what_it_is(file, tmp_path):
    result = run(tmp_path, f"{file}:means,{file}:array,protonets")
    assert result.exit_code == 0, result.output
    records = {record.method: record for record in store.load_all(tmp_path) if record.protocol == "accuracy"}
    assert records["means"].parameters == 784 * 8 + 8
    assert records["array"].training["pretraining"] == {"what": "wrapped model", "saw": "glyphs"}
    assert records["array"].training["outside"] is True
    assert records["array"].training["iterations"] == 0
    assert "outside" not in records["means"].training  # nothing was trained
    lines = (tmp_path / "tables" / "accuracy.md").read_text().splitlines()
    header, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    shown = {row[0].partition(" ")[0]: dict(zip(header, row, strict=True)) for row in reversed(rows)}
    assert shown["array"]["backbone"] == "a linear map"
    assert shown["array"]["norm"] == "own"
    assert shown["array"]["pretraining"] == "wrapped model: glyphs"
    assert shown["array"]["trained"] == "outside"
    assert shown["array"]["budget"] == "quick, no meta-training"
    assert shown["means"]["backbone"] == "Sequential"
    assert shown["Prototypical"]["backbone"] == "conv4"
    assert shown["Prototypical"]["pretraining"] == "none"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("undeclared", "sum to .* If they are logits, say outputs='logits'"),
        ("nan", "of_nan gives NaN or infinity"),
        ("none_left", "gives_no_chance gives NaN or infinity"),
        ("too_many", r"a number for each class, \(6, 5\); of_too_many gives \(6, 6\)"),
        (
            "more",
            r"\(6, 5\), as one tensor or array; gives_more gives a tuple of Tensor, ndarray. Return the logits alone",
        ),
        ("twice", "gives_twice gives a tuple of ndarray, ndarray. Return the probabilities alone"),
        ("names", "gives_names gives a dict. Return the logits alone"),
        ("none", "gives_nothing gives None. Return the logits alone"),
        ("unnamed", r"the lambda in line \d+ of my_models.py gives \(6, 6\)"),
        ("part", r"of_too_many gives \(6, 6\)"),
        ("failing", "wrapped raises fails: KeyError: 'inside'"),
        ("moving", "running averages of Sequential change"),
        ("no_method", "must be a subclass of Method"),
        ("nothing", "has no nothing"),
        ("versa", "that of the installed method versa. Rename it"),
    ],
)
def test_what_cannot_be_measured_is_one_error_before_any_training(name, message, file, tmp_path):
    result = run(tmp_path, f"protonets,{file}:{name}")
    assert_one_error(result, message)
    assert not (tmp_path / "checkpoints").exists()


def test_what_is_not_declared_is_refused():
    for arguments, message in (
        ({"function": 5}, "takes a function"),
        ({"outputs": "scores"}, "outputs='probabilities' or outputs='logits'; got 'scores'"),
        ({"trained_on": " "}, "trained on"),
        ({"trained_on": None}, "trained_on as a text; got a value of type NoneType"),
        ({"network": 3}, "network as a torch.nn.Module; got a value of type int"),
        ({"weights": 3}, "weights as a path; got a value of type int"),
        ({"backbone": 3}, "backbone as a text; got a value of type int"),
        ({"weights": "w.pt"}, "trained_on='nothing'"),
    ):
        with pytest.raises(UserError, match=message):
            mlpip_bench.wrap(**({"function": print, "outputs": "logits", "trained_on": "nothing"} | arguments))


def test_a_file_of_weights_is_part_of_the_key_and_of_the_record(file, tmp_path):
    weights = tmp_path / "w.bin"
    models = tmp_path / "with_weights.py"
    models.write_text(
        textwrap.dedent(MODELS)
        + f"loaded = mb.wrap(of_means, outputs='logits', trained_on='glyphs', weights={str(weights)!r})\n"
    )
    keys = set()
    for content in (b"one", b"two"):
        weights.write_bytes(content)
        plugin = mlpip_bench.wrap(print, outputs="logits", trained_on="glyphs", weights=weights)
        keys.add(plugin.outside["sha256"])
    assert len(keys) == 2
    assert run(tmp_path / "r", f"{models}:loaded").exit_code == 0
    (record,) = (r for r in store.load_all(tmp_path / "r") if r.protocol == "accuracy")
    assert record.training["pretraining"]["file"] == "w.bin"
    assert record.training["pretraining"]["sha256"] in keys


def test_a_model_of_a_record_is_loaded_by_its_place(file, tmp_path):
    assert run(tmp_path, f"{file}:array").exit_code == 0
    (path,) = (tmp_path / "records" / "omni5w1s" / "array").glob("accuracy-*.json")
    model = mlpip_bench.load(path, trust_code=True)
    images = np.random.default_rng(0).random((4, 1, 28, 28))
    found = model.adapt(images[:2], ["a", "b"]).predict(images[2:])
    assert found.shape == (2, 2)
    assert np.allclose(found.sum(1), 1)


def test_a_model_that_is_passed_has_the_name_of_its_function():
    def zeros(support_x, support_y, query_x, way):
        return torch.zeros(len(query_x), way)

    for function, name in ((zeros, "zeros"), (lambda *task: zeros(*task), "Wrapped")):
        plugin = mlpip_bench.wrap(function, outputs="logits", trained_on="nothing")
        model = mlpip_bench.fit(plugin, "omni5w1s", source="procedural", test_tasks=2, settings={"validation_tasks": 2})
        assert set(mlpip_bench.evaluate(model, "accuracy")["method"]) == {name}


def test_autograd_is_on_for_models_that_adapt_themselves(tmp_path):
    def tuned(support_x, support_y, query_x, way):
        head = nn.Linear(support_x[0].numel(), way)
        loss = nn.functional.cross_entropy(head(support_x.flatten(1)), support_y)
        gradient = torch.autograd.grad(loss, head.weight)[0]
        return query_x.flatten(1) @ (head.weight - gradient).T

    plugin = mlpip_bench.wrap(tuned, outputs="logits", trained_on="nothing")
    model = mlpip_bench.fit(plugin, "omni5w1s", source="procedural", test_tasks=4, settings={"validation_tasks": 2})
    assert mlpip_bench.evaluate(model, "accuracy")["mean"].between(0, 1).all()
    assert tmp_path.is_dir()
