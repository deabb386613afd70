"""Plugins of third parties that are broken: each is one clear message, and hides no other."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builders import REPOSITORY, invoke
from mlpip_bench import registry
from mlpip_bench.records import store

COSINE = REPOSITORY / "docs" / "example_plugin" / "mlpip_bench_example" / "cosine_means.py"
ONE_TRIAL = [
    "--bench",
    "omni5w1s",
    "--source",
    "procedural",
    "--no-check",
    "--iterations",
    "2",
    "--test-tasks",
    "2",
    "--set",
    "validation_tasks=2",
]
PROTOCOL = """
from mlpip_bench.evaluation.protocol import EvalProtocol
class Broken(EvalProtocol):
    description = "nothing"
    def measure(self, evaluation):
        return []
"""


def install(
    folder: Path,
    module: str,
    source: str,
    value: str,
    *,
    kind: str = "methods",
    name: str = "broken",
    package: str = "",
) -> None:
    """What pip leaves behind: a module and its package's metadata."""
    package = package or f"{module}_package"
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mlpip_bench.{kind}]\n{name} = {value}\n")


def cosine(*replaced: tuple[str, str]) -> str:
    """A correct method, with pieces of its code replaced."""
    source = COSINE.read_text(encoding="utf-8")
    for old, new in replaced:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def with_attribute(line: str, before: str = "") -> str:
    return cosine(("class Cos", f"{before}\nclass Cos"), ("    psi =", f"    {line}\n    psi ="))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages; what is imported from it is forgotten."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and Path(sys.modules[module].__file__).parent == tmp_path:
            del sys.modules[module]


LOSS = cosine()[cosine().index("    def loss") :]
OBJECTIVE = "mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)"
REFUSED = {
    "missing method": (cosine((LOSS, "")), "lacks loss."),
    "no reference": (cosine(("    reference =", "    cited =")), "lacks reference."),
    "no psi": (cosine(("    psi =", "    what =")), "lacks psi."),
    "settings are no dataclass": (
        with_attribute("Settings = dict"),
        "must have as Settings a frozen dataclass; got <class 'dict'>.",
    ),
    "settings are not frozen": (
        with_attribute(
            "Settings = Own", "import dataclasses\n@dataclasses.dataclass\nclass Own:\n    rate: float = 1.0"
        ),
        "must have as Settings a frozen dataclass; got <class 'broken_plugin.Own'>.",
    ),
    "setting without default": (
        with_attribute(
            "Settings = Own", "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Own:\n    rate: float"
        ),
        "must have a default for every field of Settings; rate has none.",
    ),
    "unknown kind of task": (
        with_attribute('handles = ("ranking",)'),
        "must have in handles a tuple of some of classification, regression, reconstruction; got ('ranking',).",
    ),
    "expected failure without reason": (
        with_attribute('xfail_checks = {"gradient": ""}'),
        "must have as xfail_checks a mapping of checks to reasons; got {'gradient': ''}.",
    ),
    "no subclass": (
        cosine(("class CosineMeans(Method[Delta])", "class CosineMeans")),
        "must be a subclass of Method; it",
    ),
    "import of what is not there": (
        cosine(("import torch\n", "import no_such_module\n")),
        "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'\n",
    ),
    "syntax error": (
        "import torch(\n",
        "cannot be imported: SyntaxError: invalid syntax (broken_plugin.py, line 1)\n",
    ),
    "no such attribute": (cosine(("class CosineMeans", "class Renamed")), "cannot be imported: AttributeError: "),
    "exit at import": ("raise SystemExit(3)", "cannot be imported: SystemExit: 3\n"),
    "preset of an unknown field": (
        with_attribute('presets = {"quick": {"*": {"nofield": 3}}}'),
        "must have presets that can be used: unknown setting of presets['quick'] 'nofield'. Known: ",
    ),
    "settings of an unknown type": (
        with_attribute(
            "Settings = Own",
            'import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Own:\n    rate: "NoType" = 1.0',
        ),
        "must have settings and presets that can be used: NameError: name 'NoType' is not defined.",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_class_that_is_no_method_is_refused_and_hides_no_other(fault, site):
    source, says = REFUSED[fault]
    install(site, "broken_plugin", source, "broken_plugin:CosineMeans")
    for command in (["check", "broken"], ["run", "--methods", "protonets,broken", *ONE_TRIAL, "--results", site]):
        result = invoke(*command)
        assert result.exit_code == 2
        assert result.output.startswith("error: method 'broken' (broken_plugin:CosineMeans")
        assert says in result.output
    listed = invoke("list", "methods", "--check")
    assert listed.exit_code == 1
    table, _, below = listed.output.partition("└")
    assert "protonets" in table
    assert "broken" not in table
    assert "broken: method 'broken' (broken_plugin:CosineMeans" in below


def test_an_interrupt_while_a_plugin_is_imported_is_no_fault_of_the_plugin(site):
    install(site, "broken_plugin", "raise KeyboardInterrupt", "broken_plugin:CosineMeans")
    assert invoke("list", "methods", "--check").exit_code == 130


def test_an_entry_point_without_a_class_is_an_error_that_says_what_it_must_be(site):
    install(site, "broken_plugin", cosine(), "broken_plugin")
    result = invoke("check", "broken")
    assert result.exit_code == 2
    assert (
        "(broken_plugin of the package broken_plugin_package) must be module:Class; got 'broken_plugin'."
        in result.output
    )


def test_the_list_of_methods_keeps_settings_and_words_whole_in_a_terminal_of_80_columns(site):
    long = "inner_engine='native', observed='support', first_order=False, learned_prior=True, local_rate=0.1"
    fields = "\n".join(f"    {f.replace('=', ': object = ')}" for f in long.split(", "))
    own = f"import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Own:\n{fields}"
    install(site, "own_plugin", with_attribute("Settings = Own", own), "own_plugin:CosineMeans", name="own")
    result = invoke("list", "methods", "--check", COLUMNS="80")
    assert all(len(line) <= 80 for line in result.output.splitlines())
    words = result.output.replace("│", " ").split()
    for name in registry.method_names():
        plugin = registry.method(name)
        assert set(f"{plugin.psi} {plugin.reference}".split()) <= set(words), name
    assert set(long.split(" ")) <= set(words)


def test_a_broken_plugin_does_not_keep_others_from_a_run(site):
    install(site, "broken_plugin", "import no_such_module", "broken_plugin:CosineMeans")
    result = invoke("run", "--methods", "protonets", *ONE_TRIAL, "--results", site)
    assert result.exit_code == 0, result.output


def test_a_plugin_that_is_installed_or_removed_while_the_process_runs_is_seen(site):
    assert "late" not in registry.names("method")
    install(site, "late_plugin", cosine(), "late_plugin:CosineMeans", name="late")
    assert "late" in registry.names("method")
    shutil.rmtree(site / "late_plugin_package-1.0.dist-info")
    assert "late" not in registry.names("method")


def test_the_packages_are_read_once_for_many_names(monkeypatch):
    reads = []
    read = registry.entry_points
    monkeypatch.setattr(registry, "entry_points", lambda group: reads.append(group) or read(group=group))
    for _ in range(3):
        registry.method("protonets")
    assert len(reads) == len(set(reads)), reads


def only(monkeypatch, *names: str) -> None:
    """Leave so many of this package's own methods, for speed."""
    entry_points = registry.entry_points

    def fewer(group: str):
        found = entry_points(group=group)
        if group != "mlpip_bench.methods":
            return found
        return [e for e in found if e.dist.name != "mlpip_bench" or e.name in names]

    monkeypatch.setattr(registry, "entry_points", fewer)


def test_check_all_names_a_plugin_that_cannot_be_loaded_and_goes_on(site, monkeypatch):
    install(site, "broken_plugin", "import no_such_module", "broken_plugin:CosineMeans")
    only(monkeypatch, "protonets")
    result = invoke("check", "--all")
    assert result.exit_code == 1
    assert (
        "failed: method 'broken' (broken_plugin:CosineMeans of the package broken_plugin_package) cannot be imported: "
        in result.output
    )
    assert "1 of 2 methods pass; failed: broken" in result.output


RAISES = '        raise KeyError("missing")\n'
FAILING = {
    "raises in amortize": (
        cosine(("        features, statistics =", RAISES + "        features, statistics =")),
        {"shapes", "posterior", "loss_scalar"},
        "KeyError: 'missing'",
    ),
    "raises in predictive": (
        cosine(("        features, _ =", RAISES + "        features, _ =")),
        {"shapes", "probabilities", "loss_scalar"},
        "KeyError: 'missing'",
    ),
    "raises in loss": (
        cosine(("        return mlpip_loss", RAISES + "        return mlpip_loss")),
        {"shapes", "loss_scalar", "every_parameter"},
        "KeyError: 'missing'",
    ),
    "predictive of the wrong shape": (
        cosine(
            ("features, _ = self.backbone(query_x,", "features, _ = self.backbone(query_x[:, :1],"),
            (OBJECTIVE, "self.scale * 1"),
        ),
        {"shapes", "queries_independent"},
        "distribution with batch shape (task, point) = (2, 75); CosineMeans's is batch shape (2, 1).",
    ),
    "predictive is a tensor": (
        cosine(
            ("return Categorical(logits=", "return ("),
            ("mean.mT, validate_args=False)", "mean.mT)"),
            (OBJECTIVE, "self.scale * 1"),
        ),
        {"shapes"},
        "distribution with batch shape (task, point) = (2, 75); CosineMeans's is a Tensor.",
    ),
    "loss of each query": (
        cosine((OBJECTIVE, "-self.predictive(self.amortize(batch.support), batch.query.x).log_prob(batch.query.y)")),
        {"loss_scalar"},
        "loss must return a scalar tensor with a gradient; CosineMeans's is a tensor of shape",
    ),
}


@pytest.mark.parametrize(
    "fault",
    [f if f == "predictive of the wrong shape" else pytest.param(f, marks=pytest.mark.slow) for f in FAILING],
)
def test_a_method_that_fails_at_work_fails_its_checks_and_its_trial_only(fault, site):
    source, checks, says = FAILING[fault]
    install(site, "broken_plugin", source, "broken_plugin:CosineMeans")
    checked = invoke("check", "broken")
    assert checked.exit_code == 1
    failed, status = set(), ""
    for line in checked.output.splitlines():
        if line.startswith("│"):
            name, status = line.split("│")[1].strip(), line.split("│")[2].strip() or status  # one status for its rows
            failed |= {name} if status == "failed" else set()
    assert checks <= failed
    assert "interface" not in failed
    ran = invoke("run", "--methods", "broken,protonets", *ONE_TRIAL, "--results", site)
    assert ran.exit_code == 1
    assert says in ran.output
    assert {r.method for r in store.load_all(site)} == {"protonets"}


def test_two_plugins_of_one_name_are_both_named_and_the_others_go_on(site, monkeypatch):
    install(site, "one_plugin", cosine(), "one_plugin:CosineMeans", name="of_both")
    install(site, "other_plugin", cosine(), "other_plugin:CosineMeans", name="of_both")
    only(monkeypatch, "protonets")
    says = (
        "'of_both' is registered by one_plugin:CosineMeans of the package one_plugin_package and by "
        "other_plugin:CosineMeans of the package other_plugin_package. Uninstall"
    )
    result = invoke("check", "of_both")
    assert result.exit_code == 2
    assert says in result.output
    assert says in invoke("check", "--all").output
    listed = invoke("list", "methods", "--check")
    assert listed.exit_code == 1
    assert "protonets" in listed.output
    assert "of_both" in listed.output


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError"),
        (PROTOCOL, "lacks metrics."),
        (PROTOCOL.replace("    def", '    metrics = ("accuracy",)\n    def'), "must have as metrics a tuple of Metric"),
    ],
)
def test_a_broken_protocol_is_named_and_hides_no_other(source, says, site):
    install(site, "broken_protocol", source, "broken_protocol:Broken", kind="protocols")
    listed = invoke("list", "protocols", "--check")
    assert listed.exit_code == 1
    assert says in listed.output
    assert "accuracy" in listed.output
    result = invoke("run", "--methods", "protonets", "--protocols", "accuracy,broken", *ONE_TRIAL, "--results", site)
    assert result.exit_code == 2
    assert says in result.output


def test_plugins_on_the_path_of_a_process_are_found(tmp_path):
    install(tmp_path, "good_plugin", cosine(), "good_plugin:CosineMeans", name="good")
    install(tmp_path, "broken_plugin", "import no_such_module", "broken_plugin:CosineMeans")
    done = subprocess.run(
        [sys.executable, "-m", "mlpip_bench", "list", "methods", "--check"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "300"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "point mass at the class means on the unit sphere" in done.stdout
    assert "method 'broken' (broken_plugin:CosineMeans of the package broken_plugin_package)" in done.stdout
