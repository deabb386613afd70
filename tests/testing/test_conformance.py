"""All registered methods conform; and the suite's own rules: nothing is skipped unseen, nothing raises."""

import dataclasses
import functools
import random
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from mlpip_bench.methods.matching_nets import MatchingNets, MatchingNetsSettings
from torch.distributions import MultivariateNormal, Normal

from builders import REPOSITORY, invoke
from mlpip_bench import registry
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.testing.checking import CheckResult
from mlpip_bench.testing.conformance import CHECKS, assert_conforms, check_method
from mlpip_bench.utils.errors import UserError

# What may not apply: of a point mass, of a method without parameters, of one that bounds nothing.
MAY_NOT_APPLY = {"predictive_integrates", "every_parameter", "gradient", "evidence_bound"}


# What a classifier keeps by its nature: a column of a table in the docs, and the checks that all must pass.
PROPERTIES = {
    "exchangeable in D": ("support_order",),
    "equivariant in classes": ("class_relabeling",),
    "open in way and shot": ("way_and_shot",),
    "independent in queries": ("queries_independent",),
    "a density": ("probabilities", "predictive_integrates"),
}


@functools.cache
def found(name: str, check: str) -> CheckResult:
    (result,) = check_method(registry.method(name), [check])
    return result


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", registry.method_names())
def test_a_registered_method_conforms(name, check):
    plugin, result = registry.method(name), found(name, check)
    if result.status == "not applicable":
        assert check in MAY_NOT_APPLY or set(CHECKS[check].kinds).isdisjoint(plugin.handles)
        pytest.skip(result.detail)
    if result.status == "expected failure":
        pytest.xfail(result.detail)
    assert result.status == "passed", result.detail


@dataclasses.dataclass(frozen=True)
class FullContext(MatchingNetsSettings):
    context: Literal["none", "full"] = "full"


class MatchingNetsFull(MatchingNets):
    Settings = FullContext


OTHER_SETTINGS = {"matching_nets": (", `context=full`", MatchingNetsFull)}
"""What keeps other things than a method's default settings do: how the row names it."""


def properties() -> list[str]:
    """Rows of the table of methods: ``no`` where a check fails, which for default settings the method expects."""
    rows = []
    for name in registry.method_names():
        if "classification" not in registry.method(name).handles:
            continue
        statuses = [{found(name, check).status for check in checks} for checks in PROPERTIES.values()]
        rows.append(property_row(name, "", statuses))
        if name in OTHER_SETTINGS:
            settings, plugin = OTHER_SETTINGS[name]
            statuses = [{r.status for r in check_method(plugin, checks)} for checks in PROPERTIES.values()]
            rows.append(property_row(name, settings, statuses))
    return rows


def property_row(name: str, settings: str, statuses: list[set[str]]) -> str:
    cells = ["no" if kinds & {"expected failure", "failed"} else "yes" for kinds in statuses]
    return f"| [`{name}`]({name}.md){settings} | {' | '.join(cells)} |"


def test_the_page_of_methods_says_what_the_checks_find():
    page = (REPOSITORY / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- table: properties -->\n\| method \| (.*) \|\n\|.*\n((?:\|.*\n)+)", page)
    assert table[0].split(" | ") == list(PROPERTIES)
    assert table[1].splitlines() == properties()


# -- a method that is known in closed form ---------------------------------------------------------------------------


class Exact(Method[MultivariateNormal]):
    """Bayesian linear regression: posterior, predictive and evidence by the textbook, and no parameter."""

    reference = "Bishop 2006, Pattern Recognition and Machine Learning"
    psi = "Gaussian over the weights and the bias, exact"
    handles = ("regression",)
    bounds_evidence = True

    def design(self, x):
        return torch.cat([x.flatten(2), torch.ones_like(x.flatten(2)[..., :1])], -1)

    def amortize(self, support):
        phi, precision = self.design(support.x), 1 / self.problem.noise_std**2
        posterior = torch.eye(phi.shape[-1]).to(phi) + precision * phi.mT @ phi
        mean = torch.linalg.solve(posterior, precision * phi.mT @ support.y.unsqueeze(-1)).squeeze(-1)
        return Posterior(MultivariateNormal(mean, precision_matrix=posterior, validate_args=False))

    def predictive(self, q, query_x):
        phi = self.design(query_x)
        variance = ((phi @ q.psi.covariance_matrix) * phi).sum(-1) + self.problem.noise_std**2
        return Normal((phi @ q.psi.mean.unsqueeze(-1)).squeeze(-1), variance.sqrt(), validate_args=False)

    def loss(self, batch):
        return -self.log_evidence(batch.support).mean() / batch.support.y.shape[1]

    def log_evidence(self, data):
        """By the chain rule: each point under the predictive of the points before it."""
        total = torch.zeros_like(data.y[:, 0])
        for i in range(data.y.shape[1]):
            q = self.amortize(dataclasses.replace(data, x=data.x[:, :i], y=data.y[:, :i]))
            total = total + self.predictive(q, data.x[:, i : i + 1]).log_prob(data.y[:, i : i + 1])[:, 0]
        return total


class OneNatTooMuch(Exact):
    def log_evidence(self, data):
        return super().log_evidence(data) + 1


def status(plugin, check: str) -> str:
    return check_method(plugin, [check])[0].status


def test_an_exact_method_without_parameters_conforms_and_what_does_not_apply_is_said():
    results = check_method(Exact)
    assert [r.name for r in results] == list(CHECKS)
    assert {r.name for r in results if r.status == "not applicable"} == {
        "class_relabeling",
        "unequal_shots",
        "every_parameter",
        "gradient",
    }
    assert {r.status for r in results} == {"passed", "not applicable"}, results
    by_name = {r.name: r for r in results}
    assert by_name["every_parameter"].detail == "no parameters"
    assert by_name["class_relabeling"].detail == "only for classification"
    assert all(r.protects == CHECKS[r.name].protects for r in results)


def test_the_exact_evidence_is_the_limit_of_the_bound():
    assert status(Exact, "evidence_bound") == "passed"
    (result,) = check_method(OneNatTooMuch, ["evidence_bound"])
    bound, evidence = map(
        float, re.search(r"is ([-.\d]+) nats, above the log-evidence ([-.\d]+)", result.detail).groups()
    )
    assert bound - evidence == pytest.approx(1, abs=0.02)  # four digits are shown


# -- xfail_checks, failures and errors -------------------------------------------------------------------------------


class Fails(Exact):
    xfail_checks = {"support_order": "the first point weighs more"}  # noqa: RUF012

    def amortize(self, support):
        y = torch.cat([2 * support.y[:, :1], support.y[:, 1:]], 1)
        return super().amortize(dataclasses.replace(support, y=y))


def variant(base=Exact, **attributes):
    return type("Variant", (base,), attributes)


def test_an_expected_failure_is_one_that_really_fails():
    (result,) = check_method(Fails, ["support_order"])
    assert result.status == "expected failure"
    assert result.detail.startswith("the first point weighs more (")
    assert_conforms(Fails, ["support_order", "support_counts"])
    assert status(variant(Fails, xfail_checks={}), "support_order") == "failed"


@pytest.mark.parametrize(("check", "is_"), [("support_order", "passed"), ("every_parameter", "not applicable")])
def test_a_check_that_is_expected_to_fail_and_does_not_is_a_failure(check, is_):
    (result,) = check_method(variant(xfail_checks={check: "for no reason"}), [check])
    assert result.status == "failed"
    assert result.detail == f"xfail_checks names it (for no reason), but it is {is_}; take it out of xfail_checks"


@pytest.mark.parametrize("unknown", ["suport_order", "interface"])
def test_an_unknown_name_in_xfail_checks_is_an_error_and_nothing_else_is_run(unknown):
    results = check_method(variant(xfail_checks={unknown: "for no reason"}))
    assert [r.status for r in results] == ["failed", *["not run"] * (len(CHECKS) - 1)]
    assert results[0].detail.startswith(f"unknown check in xfail_checks '{unknown}'.")
    assert {r.detail for r in results[1:]} == {"not run, since interface fails"}


def test_an_unknown_check_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UserError, match=r"unknown check 'gradients'. Did you mean 'gradient'\? Known: batch_of_tasks,"):
        check_method(Exact, ["gradients"])


def test_a_plugin_that_raises_fails_that_check_with_its_own_error_and_line():
    def loss(self, batch):
        return {}["missing"]

    results = check_method(variant(loss=loss, __module__=__name__))
    failed = {r.name: r.detail for r in results if r.status == "failed"}
    assert set(failed) == {
        "inputs_unchanged",
        "shapes",
        "loss_scalar",
        "loss_mean_over_tasks",
        "loss_mean_over_points",
        "training_noise",
        "evidence_bound",
        "process_state",
    }
    line = loss.__code__.co_firstlineno + 1
    assert set(failed.values()) == {f"KeyError: 'missing' ({Path(__file__).name}, line {line})"}


def test_assert_conforms_lists_all_failures_in_one_error():
    def loss(self, batch):
        return Exact.loss(self, batch).expand(2)

    with pytest.raises(AssertionError) as caught:
        assert_conforms(variant(Fails, loss=loss, xfail_checks={}), ["support_order", "loss_scalar", "posterior"])
    first, *lines = str(caught.value).splitlines()
    assert first == "Variant does not conform:"
    assert [line.partition(":")[0] for line in lines] == ["support_order", "loss_scalar"]
    assert all(line.endswith(f"(protects: {CHECKS[line.partition(':')[0]].protects})") for line in lines)


def test_a_class_that_is_no_method_fails_with_what_is_missing():
    results = check_method(variant(reference="", predictive=Method.predictive))
    assert results[0] == CheckResult("interface", "failed", CHECKS["interface"].protects, "lacks predictive, reference")
    assert {r.status for r in results[1:]} == {"not run"}


def test_checks_that_are_not_run_are_no_pass():
    with pytest.raises(AssertionError) as caught:
        assert_conforms(variant(reference=""), ["support_order", "posterior"])
    _, interface, others = str(caught.value).splitlines()
    assert interface.startswith("interface: lacks reference (protects: ")
    assert others == "2 other checks: not run, since interface fails"


@pytest.mark.parametrize(
    ("presets", "says"),
    [
        ({"quick": {"*": {"nofield": 3}}}, "unknown setting of presets['quick'] 'nofield'. Known: clip_norm, "),
        ({"paper": {"omni10w3s": {"iteration": 3}}}, "'iteration'. Did you mean 'iterations'?"),
        (
            {"paper": {"linear": {"iterations": "many"}}},
            "presets['paper'].iterations must be a whole number; got 'many'",
        ),
        ({"quick": {"*": {"iterations": -1}}}, "iterations must be at least 0 and finite; got -1"),
        ({"quik": {}}, "unknown preset 'quik'. Did you mean 'quick'? Known: paper, quick"),
        ({"quick": {"omin": {}}}, "unknown task family 'omin'."),
        (
            {"quick": {"iterations": 3}},
            "must have as presets a mapping {preset: {scope: {field: value}}}; got {'quick': ",
        ),
    ],
)
def test_presets_that_a_run_would_refuse_fail_interface(presets, says):
    (result,) = check_method(variant(presets=presets), ["interface"])
    assert result.status == "failed"
    assert says in result.detail


def test_presets_that_a_run_accepts_pass_interface():
    presets = {"paper": {"*": {"iterations": 3}, "linear": {"samples": 2}, "omni10w3s": {"learning_rate": 0.1}}}
    settings = dataclasses.make_dataclass("Own", [("samples", int, 1)], frozen=True)
    assert status(variant(presets=presets, Settings=settings), "interface") == "passed"


def raises(error: BaseException):
    def amortize(self, support):
        raise error

    return amortize


def test_a_plugin_that_exits_fails_its_checks_and_an_interrupt_goes_through():
    (result,) = check_method(variant(amortize=raises(SystemExit(0))), ["posterior"])
    assert (result.status, result.detail) == ("failed", "SystemExit: 0")
    with pytest.raises(KeyboardInterrupt):
        check_method(variant(amortize=raises(KeyboardInterrupt())), ["posterior"])


@pytest.mark.parametrize("function", ["amortize", "predictive", "loss"])
def test_a_change_of_the_tasks_is_said_with_the_function_that_makes_it(function):
    def changes(self, *arguments):
        {"amortize": lambda d: d.x, "predictive": lambda _, x: x, "loss": lambda b: b.query.x}[function](
            *arguments
        ).add_(1)
        return getattr(Exact, function)(self, *arguments)

    (result,) = check_method(variant(**{function: changes}), ["inputs_unchanged"])
    changed = "support.x" if function == "amortize" else "query.x"
    assert result.detail == f"{function} changes {changed} in place; let it work on a copy"


def test_the_suite_leaves_global_generators_as_they_are():
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    check_method(Exact)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]  # noqa: NPY002


# -- the command line ------------------------------------------------------------------------------------------------


def call(*arguments: str):
    return invoke("check", *arguments, COLUMNS="400")


def test_check_shows_results_and_what_they_protect(monkeypatch):
    monkeypatch.setattr(registry, "method", {"exact": Exact, "fails": variant(Fails, xfail_checks={})}.get)
    good = call("exact")
    assert good.exit_code == 0, good.output
    for text in ("support_order", "passed", CHECKS["support_order"].protects, "not applicable", "no parameters"):
        assert text in good.output
    assert "1 of 1 methods pass" in good.output

    bad = call("fails", "exact")
    assert bad.exit_code == 1
    fails, detail, exact, total = (line.strip() for line in bad.output.splitlines())
    applicable = len(CHECKS) - 4
    assert fails == f"fails  {applicable - 1} passed, 1 failed, 4 not applicable"
    assert detail.startswith("support_order: support points in another order: they differ by")
    assert detail.endswith(f"(protects: {CHECKS['support_order'].protects})")
    assert exact == f"exact  {applicable} passed, 4 not applicable"
    assert total == "1 of 2 methods pass; failed: fails"

    verbose = call("fails", "exact", "--verbose").output
    assert re.search(r"support_order +│ failed", verbose)
    assert verbose.count(CHECKS["support_order"].protects) == 2


def test_checks_that_fail_for_one_reason_are_shown_together(monkeypatch):
    broken = {
        "exits": variant(amortize=raises(SystemExit(3))),
        "lacks": variant(psi=""),
        "expected": Fails,
    }
    monkeypatch.setattr(registry, "method", broken.get)
    alone = call("exits").output
    assert alone.count("SystemExit: 3") == 1
    assert "support_counts" in alone
    alone = call("lacks").output
    assert re.search(rf"{len(CHECKS) - 1} other checks +│ not run +│ not run, since interface fails", alone)
    together = call("exits", "lacks", "expected")
    assert together.exit_code == 1
    lines = together.output.splitlines()
    assert sum("SystemExit: 3" in line for line in lines) == 1
    assert f"    {len(CHECKS) - 1} other checks: not run, since interface fails" in map(str.rstrip, lines)
    assert f"expected  {len(CHECKS) - 5} passed, 1 expected failure, 4 not applicable" in lines
    assert "1 of 3 methods pass; failed: exits, lacks" in lines


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "names of methods, or --all; got neither"),
        (["versa", "--all"], "names of methods, or --all; got both"),
        (["vers"], "unknown method 'vers'. Did you mean 'versa'?"),
    ],
)
def test_check_refuses_bad_input(arguments, says):
    result = call(*arguments)
    assert result.exit_code == 2
    assert says in result.output


# -- documentation  ------------------------------------------------------------------


def test_the_documentation_lists_the_checks_of_the_code():
    text = (REPOSITORY / "docs" / "conformance.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.M))
    assert list(listed) == list(CHECKS)
    assert listed == {name: check.protects for name, check in CHECKS.items()}
    for sentence in listed.values():
        assert re.fullmatch(r"[A-Z].*[^.]\.", sentence), f"one line that ends with a full stop: {sentence}"
        assert ". " not in sentence, f"one sentence: {sentence}"


if __name__ == "__main__":  # print the table, for the page
    print(*properties(), sep="\n")  # noqa: T201
