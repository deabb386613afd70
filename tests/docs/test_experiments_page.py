"""Tables of docs/experiments.md, timing.md and regression.md quote the records that are committed with them."""

import itertools
import re
import statistics

import pytest

from builders import REPOSITORY
from mlpip_bench.records import store
from mlpip_bench.records.published import load as load_published
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.records.statistics import Estimate, difference, estimate, mean_ci95
from mlpip_bench.reporting.figures.paper import _OPTIMA
from mlpip_bench.reporting.tables.paired import method_differences
from mlpip_bench.reporting.wording import published_cell

DOCS = REPOSITORY / "docs"


def load(folder: str) -> list[Record]:
    return store.load_all(REPOSITORY / "results" / folder)


def score(records, metric: str, model: str = "best", condition=None, **fields):
    """The one score of a metric among records with such fields."""
    (found,) = [
        s
        for r in records
        for s in r.scores
        if all(getattr(r, name) == value for name, value in fields.items())
        and (s.metric, s.model, dict(s.condition)) == (metric, model, condition or {})
    ]
    return found


def shown(scores: Scores, digits: int = 4, factor: float = 1) -> str:
    mean, ci95 = mean_ci95(scores.per_task)
    return f"{factor * mean:.{digits}f} ± {factor * ci95:.{digits}f}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def toy_rows() -> list[str]:
    records = load("toy")
    rows = []
    for bench in ("toy5", "toy10"):
        for method in ("exact_linear", "versa", "amortized_vi", "nonamortized_vi"):
            of = {"bench": bench, "method": method, "model": "last"}
            kl, ratio, coverage = (score(records, m, **of) for m in ("kl", "variance_ratio", "coverage"))
            nll = score(records, "nll", **of)
            cells = (shown(kl), shown(ratio, 3), shown(coverage, 2, 100), shown(nll))
            rows.append(row(f"`{bench}`", f"`{method}`", *cells))
    return rows


def ratios() -> dict[tuple[str, int], list[float]]:
    """Mean variance ratio of the last model by bench and L, one a seed."""
    found: dict[tuple[str, int], list[float]] = {}
    for record in load("toy_samples"):
        if record.protocol == "posterior":
            mean, _ = mean_ci95(score([record], "variance_ratio", "last").per_task)
            found.setdefault((record.bench, record.config["settings"]["samples"]), []).append(mean)
    return found


def sample_rows() -> list[str]:
    found = ratios()
    rows = []
    for samples in (1, 5, 10, 20, 50, 100, 500, 0):
        cells = [str(samples) if samples else "closed form"]
        for n in (5, 10):
            optimum = 1.0 if samples == 0 else _OPTIMA[n].get(samples)
            cells.append("" if optimum is None else f"{optimum:.2f}")
            for bench in (f"toyfresh{n}", f"toy{n}"):
                values = found.get((bench, samples), [])
                mean, ci95 = mean_ci95(values) if values else (0, 0)
                cells.append("" if not values else f"{mean:.2f}" + (f" ± {ci95:.2f}" if len(values) > 1 else ""))
        rows.append(row(*cells))
    return rows


def versatility_rows() -> list[str]:
    records = load("versatility")
    rows = []
    for bench, method in sorted({(r.bench, r.method) for r in records}, key=lambda c: (c[1], len(c[0]), c[0])):
        conditions = [{"way": w} for w in (5, 20, 50, 100)] + [{"way": 5, "shot": s} for s in (1, 5, 15)]
        cells = [shown(score(records, "accuracy", condition=c, bench=bench, method=method), 2, 100) for c in conditions]
        rows.append(row(f"`{method}`", f"`{bench}`", *cells))
    return rows


def context_rows() -> list[str]:
    records = load("context")
    return [
        row(
            f"`{bench}`",
            shown(score(records, "accuracy", bench=bench), 2, 100),
            shown(score(records, "nll", bench=bench)),
            shown(score(records, "within_class_share", bench=bench), 1, 100),
        )
        for bench in ("context16", "context2")
    ]


def view_rows(folder: str) -> list[str]:
    rows = []
    order = ("versa", "cvae", "nearest_view", "mean_view")
    for record in sorted(load(folder), key=lambda r: (r.data["name"], r.bench, order.index(r.method), r.key)):
        cells = [shown(score([record], m), 4 if m == "mse" else 3) for m in ("mse", "ssim", "ssim_range_2")]
        unseen = shown(score([record], "mse", condition={"views": "unseen"}))
        angles = ", degrees" if record.data["options"]["angles"] == "degrees" else ""
        iterations = str(record.config["iterations"])
        rows.append(
            row(
                record.data["name"],
                f"`{record.bench}`",
                f"`{record.method}`{angles}",
                iterations,
                cells[0],
                unseen,
                *cells[1:],
            )
        )
    return rows


def by_precision(method: str, metric: str, bounds: tuple[float, float] | None) -> tuple[Estimate, Estimate, Estimate]:
    """Means over three seeds in float32 and in bf16, and bf16 less float32 on the same seeds and test tasks."""
    records = [r for r in load("precision") if r.method == method]
    runs = {
        precision: [
            score([r for r in records if r.config.get("precision", "float32") == precision], metric, seed=seed).per_task
            for seed in (0, 1, 2)
        ]
        for precision in ("float32", "bf16")
    }
    full, half = runs["float32"], runs["bf16"]
    return estimate(full, bounds), estimate(half, bounds), difference(half, full, bounds)


PRECISE = ("protonets", "versa", "maml", "amortized_vi", "nonamortized_vi")


def precision_rows() -> list[str]:
    rows = []
    for method in PRECISE:
        accuracies, losses = by_precision(method, "accuracy", (0, 1)), by_precision(method, "nll", None)
        cells = [f"{100 * e.mean:.2f} ± {100 * e.ci95:.2f}" for e in accuracies]
        cells += [f"{e.mean:.4f} ± {e.ci95:.4f}" for e in losses]
        rows.append(row(f"`{method}`", *cells))
    return rows


@pytest.mark.parametrize("method", PRECISE)
def test_bf16_is_within_half_a_point_of_float32(method):
    *_, less = by_precision(method, "accuracy", (0, 1))
    assert abs(less.mean) < 0.005


def over_seeds(records, metric: str, bounds=None, digits: int = 4, factor: float = 1) -> str:
    """Mean of the best models over the seeds of records of one configuration."""
    runs = [score([r], metric).per_task for r in records if metric in {s.metric for s in r.scores}]
    found = estimate(runs, bounds)
    return f"{factor * found.mean:.{digits}f} ± {factor * found.ci95:.{digits}f}"


def icon_rows() -> list[str]:
    rows = []
    for method in PRECISE:
        cells = []
        for split in ("classes", "drawers"):
            of = [r for r in load("icons") if r.method == method and r.data["options"]["split"] == split]
            cells += [over_seeds(of, "accuracy", (0, 1), 2, 100), over_seeds(of, "nll")]
        rows.append(row(f"`{method}`", *cells))
    return rows


def kanji_rows() -> list[str]:
    rows = []
    for method in ("protonets", "versa", "maml"):
        of = [r for r in load("kanji") if r.method == method and r.protocol == "versatility"]
        conditions = [{"way": way} for way in (20, 100, 1000)]
        cells = [shown(score(of, "accuracy", condition=c), 2, 100) for c in conditions]
        rows.append(row(f"`{method}`", *cells, *(shown(score(of, "nll", condition=c), 3) for c in conditions)))
    return rows


def sinusoid_rows() -> list[str]:
    rows = []
    for bench in ("sinusoid5s", "sinusoid10s"):
        for method in ("maml", "cnp", "versa", "amortized_vi", "blind"):
            of = [r for r in load("sinusoid") if (r.bench, r.method) == (bench, method)]
            rows.append(
                row(f"`{bench}`", f"`{method}`", over_seeds(of, "nll", digits=3), over_seeds(of, "mse", digits=3))
            )
    return rows


TRANSFER = ("nearest_mean", "linear_probe", "baseline", "baseline_pp", "finetune")
META_LEARNERS = ("protonets", "versa", "maml")


def transfer_cell(backbone: str, bench: str, method: str, metric: str, digits: int, factor: float) -> str:
    of = [r for r in load("transfer") if (r.backbone["name"], r.bench, r.method) == (backbone, bench, method)]
    return shown(score(of, metric, protocol=metric), digits, factor)


def transfer_rows() -> list[str]:
    rows = []
    for backbone in ("conv4", "resnet12"):
        for method in (*TRANSFER, *META_LEARNERS):
            cells = []
            for bench in ("tiny5w1s", "tiny5w5s"):
                cells.append(transfer_cell(backbone, bench, method, "accuracy", 2, 100))
                cells.append(transfer_cell(backbone, bench, method, "nll", 3, 1))
            rows.append(row(f"`{backbone}`", f"`{method}`", *cells))
    return rows


def transfer_range(backbone: str, bench: str, learner: str) -> str:
    """The least and the greatest difference between a row of transfer and a method that trains on tasks."""
    of = {
        r.method: score([r], "accuracy").per_task
        for r in load("transfer")
        if (r.backbone["name"], r.bench, r.protocol) == (backbone, bench, "accuracy")
    }
    found = sorted(mean_ci95([a - b for a, b in zip(of[m], of[learner], strict=True)]) for m in TRANSFER)
    ends = (f"{100 * mean:+.2f} ± {100 * ci95:.2f}" for mean, ci95 in (found[0], found[-1]))
    return " to ".join(ends)


def transfer_difference_rows() -> list[str]:
    benches = ("tiny5w1s", "tiny5w5s")
    return [
        row(f"`{backbone}`", f"`{learner}`", *(transfer_range(backbone, bench, learner) for bench in benches))
        for backbone in ("conv4", "resnet12")
        for learner in META_LEARNERS
    ]


SYSTEMS = {
    "`protonets`": ("protonets", {}),
    "`versa`": ("versa", {}),
    "`maml`": ("maml", {}),
    "`matching_nets`": ("matching_nets", {"context": "none"}),
    "`matching_nets`, full context": ("matching_nets", {"context": "full"}),
    "`siamese_nets`": ("siamese_nets", {}),
    "`memory_mod`": ("memory_mod", {"stop_keys": False, "learning_rate": 1e-3}),
    "`memory_mod`, `stop_keys`": ("memory_mod", {"stop_keys": True}),
    "`memory_mod`, rate 0.0001": ("memory_mod", {"learning_rate": 1e-4}),
    "`map_ssvm`": ("map_ssvm", {}),
    "`map_dlm`": ("map_dlm", {}),
    "`neural_statistician`": ("neural_statistician", {}),
    "`snail`": ("snail", {}),
    "`relation_nets`": ("relation_nets", {}),
    "`meta_sgd`": ("meta_sgd", {}),
    "`reptile`": ("reptile", {}),
    "`bmaml`": ("bmaml", {}),
    "`llama`": ("llama", {}),
    "`abml`": ("abml", {}),
    "`platipus`": ("platipus", {}),
    "`imaml`": ("imaml", {}),
    "`meta_lstm`": ("meta_lstm", {}),
}


def system_rows(bench: str) -> list[str]:
    """What Table 3's systems reach, with the NLL that a fitted temperature makes of it where there is one."""
    quoted = [q for q in load_published() if (q.bench, q.metric) == (bench, "accuracy")]
    published = {q.method: published_cell(q).text for q in quoted}
    of_bench = [r for r in load("systems") if r.bench == bench]
    rows = []
    for name, (method, choice) in SYSTEMS.items():
        own = [r for r in of_bench if r.method == method]
        own = [r for r in own if all((r.config | r.config["settings"])[key] == value for key, value in choice.items())]
        if not own:
            continue
        plain, after = ([r for r in own if ("recalibrated" in r.config) is wanted] for wanted in (False, True))
        cells = [
            f"{plain[0].parameters:,}",
            shown(score(plain, "accuracy", protocol="accuracy"), 2, 100),
            shown(score(plain, "nll", protocol="nll"), 3),
            shown(score(after, "nll", protocol="nll"), 3) if after else "",
        ]
        of_paper = "" if choice.get("context") == "full" else published.get(method, "")  # which is without
        rows.append(row(name, *cells, *([of_paper] if published else [])))
    return rows


# What ψ is to each: a point, or a distribution.
ADAPTED = ("maml", "imaml", "meta_lstm", "bmaml", "llama", "platipus", "abml")
POSTERIORS = (*ADAPTED, "versa", "amortized_vi", "nonamortized_vi")


def posterior_records(bench: str) -> list[Record]:
    """What a distribution over ψ is compared by: with the settings of VI that validation chose."""
    if bench == "omni5w1s":
        records = [r for r in load("systems") if r.method not in ("amortized_vi", "nonamortized_vi")]
        records += [r for r in load("omniglot") if r.config["settings"].get("beta") == "1/points"]
    else:
        records = [r for r in load("posteriors") if r.bench == bench]
    return [r for r in records if r.bench == bench and r.method in POSTERIORS]


def against_maml(bench: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Mean and half-width of each method's paired difference from MAML by metric and method."""
    found = {}
    for c in method_differences(posterior_records(bench)):
        if c.against == "maml":
            found[c.metric, c.method] = c.mean, c.ci95
        elif c.method == "maml":
            found[c.metric, c.against] = -c.mean, c.ci95
    return found


def overconfidence(record: Record) -> float:
    """Mean confidence minus accuracy over all queries."""
    detail = score([record], "ece").detail
    pairs = zip(detail["count"], detail["confidence"], detail["accuracy"], strict=True)
    return sum(n * (c - a) for n, c, a in pairs) / sum(detail["count"])


def posterior_rows(bench: str) -> list[str]:
    records, differences = posterior_records(bench), against_maml(bench)
    rows = []
    for method in POSTERIORS:
        own = [r for r in records if r.method == method]
        (calibration,) = [r for r in own if r.protocol == "calibration"]
        cells = [
            shown(score(own, "accuracy", protocol="accuracy"), 2, 100),
            shown(score(own, "nll", protocol="nll"), 3),
            shown(score(own, "ece"), 2, 100),
            f"{100 * overconfidence(calibration):+.2f}",
        ]
        for metric, digits, factor in (("accuracy", 2, 100), ("nll", 3, 1), ("ece", 2, 100)):
            if method == "maml":
                cells.append("")
                continue
            mean, ci95 = differences[metric, method]
            cells.append(f"{factor * mean:+.{digits}f} ± {factor * ci95:.{digits}f}")
        rows.append(row(f"`{method}`", *cells))
    return rows


def sweep(method: str, setting: str) -> dict[float, list[Record]]:
    """Records by the weight of a term in the loss."""
    records = [r for r in load("posteriors") if (r.bench, r.method) == ("omni5w1s", method) and r.protocol != "timing"]
    return {
        weight: [r for r in records if r.config["settings"][setting] == weight]
        for weight in sorted({r.config["settings"][setting] for r in records})
    }


def paired(runs: list[Record], against: list[Record], metric: str) -> Estimate:
    """Difference of the first from the second on the same tasks, in accuracy or NLL."""
    first, second = (score(each, metric, protocol=metric).per_task for each in (runs, against))
    return difference([first], [second], (0, 1) if metric == "accuracy" else None)


def sweep_rows(method: str, setting: str) -> list[str]:
    """What the weight of a term in the loss does, each with its difference from weight 0."""
    by_weight = sweep(method, setting)
    rows = []
    for weight, own in by_weight.items():
        cells = [
            shown(score(own, "accuracy", protocol="accuracy"), 2, 100),
            shown(score(own, "nll", protocol="nll"), 3),
            shown(score(own, "ece"), 2, 100),
        ]
        for metric, digits, factor in (("accuracy", 2, 100), ("nll", 3, 1)):
            found = paired(own, by_weight[0], metric)
            cells.append(f"{factor * found.mean:+.{digits}f} ± {factor * found.ci95:.{digits}f}" if weight else "")
        rows.append(row(f"{weight:g}", *cells))
    return rows


def cost_rows() -> list[str]:
    """Medians over repeats, each with its ratio to MAML's, repeat by repeat."""
    records = [r for r in load("posteriors") if r.protocol == "timing"]

    def repeats(method: str, metric: str, regime: str) -> list[float]:
        return score(records, metric, condition={"regime": regime}, method=method).per_task

    def cell(method: str, metric: str, regime: str, factor: float) -> str:
        own, base = repeats(method, metric, regime), repeats("maml", metric, regime)
        ratio = statistics.median(a / b for a, b in zip(own, base, strict=True))
        return f"{factor * statistics.median(own):.3g} ({ratio:.2f})"

    return [
        row(
            f"`{method}`",
            cell(method, "train_seconds", "training", 1),
            cell(method, "peak_memory_bytes", "training", 1e-6),
            cell(method, "adapt_seconds", "latency", 1e3),
            cell(method, "predict_seconds", "latency", 1e3),
            cell(method, "peak_memory_bytes", "latency", 1e-6),
        )
        for method in ADAPTED
    ]


PAGES = {
    "precision": "timing.md",
    "sinusoid": "regression.md",
    "transfer": "findings.md",
    "transfer differences": "findings.md",
    "systems omni5w1s": "findings.md",
    "systems tiny5w5s": "findings.md",
    "posteriors omni5w1s": "findings.md",
    "posteriors omni5w5s": "findings.md",
    "posteriors cost": "timing.md",
    "llama logdet_weight": "findings.md",
    "platipus kl_weight": "findings.md",
}
TABLES = {
    "icons": icon_rows,
    "kanji": kanji_rows,
    "furniture": lambda: view_rows("furniture"),
    "sinusoid": sinusoid_rows,
    "precision": precision_rows,
    "transfer": transfer_rows,
    "transfer differences": transfer_difference_rows,
    "systems omni5w1s": lambda: system_rows("omni5w1s"),
    "systems tiny5w5s": lambda: system_rows("tiny5w5s"),
    "posteriors omni5w1s": lambda: posterior_rows("omni5w1s"),
    "posteriors omni5w5s": lambda: posterior_rows("omni5w5s"),
    "posteriors cost": cost_rows,
    "llama logdet_weight": lambda: sweep_rows("llama", "logdet_weight"),
    "platipus kl_weight": lambda: sweep_rows("platipus", "kl_weight"),
    "toy": toy_rows,
    "samples": sample_rows,
    "versatility": versatility_rows,
    "context": context_rows,
    "views": lambda: view_rows("views"),
    "views_h200": lambda: view_rows("views_h200"),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_quotes_the_records(name):
    """A table follows its marker; what is between its head and the next empty line are its rows."""
    page = (DOCS / PAGES.get(name, "experiments.md")).read_text(encoding="utf-8")
    (table,) = re.findall(rf"<!-- table: {name} -->\n(?:\|.*\n){{2}}((?:\|.*\n)+)", page)
    assert table.splitlines() == TABLES[name]()


def test_the_variance_ratios_are_those_of_the_objectives_optimum():
    """Where the optimum is no point mass, from which training is still far: with new tasks at every step."""
    found = ratios()
    for n in (5, 10):
        for samples, optimum in _OPTIMA[n].items():
            if (values := found.get((f"toyfresh{n}", samples))) is None:
                continue
            tolerance = 0.15 if optimum > 0.3 else 0.3  # a point mass is approached ever more slowly
            assert abs(sum(values) / len(values) - optimum) < tolerance, (n, samples)


def test_view_findings_hold_in_the_records():
    """Versa is best on the drawn solids, better with five views than one; on COIL-100 below C-VAE and mean view."""
    mse = {(r.data["name"], r.bench, r.method): mean_ci95(score([r], "mse").per_task)[0] for r in load("views")}
    for bench in ("views1s", "views5s"):
        for data, others in (("solids", ("cvae", "mean_view", "nearest_view")), ("coil100", ("cvae", "mean_view"))):
            assert mse[data, bench, "versa"] < min(mse[data, bench, other] for other in others)
    assert mse["solids", "views5s", "versa"] < mse["solids", "views1s", "versa"]


def test_what_pages_say_of_systems_holds_in_their_records():
    of = {r.method: r for r in load("systems") if r.bench == "omni5w1s" and r.protocol == "accuracy"}
    for method in ("snail", "neural_statistician"):  # best where the budget ends
        history = {each["iteration"]: each["accuracy"] for each in of[method].training["history"]}
        assert max(history, key=history.__getitem__) == of[method].config["iterations"] == 2400
    assert {each["iteration"]: each["accuracy"] for each in of["snail"].training["history"]}[240] < 0.3
    temperatures = {
        s.detail["temperature"][0]
        for r in load("systems")
        for s in r.scores
        if (r.bench, r.method) == ("omni5w1s", "neural_statistician") and "recalibrated" in r.config
    }
    assert min(temperatures) > 10
    collapsed = [r for r in load("systems") if (r.bench, r.method) == ("tiny5w5s", "memory_mod")]
    for record in collapsed:  # each is best at one of its first validations, and worse from then on
        accuracies = [each["accuracy"] for each in record.training["history"]]
        assert record.training["best_iteration"] <= 200
        assert accuracies[-1] < max(accuracies)


def test_what_findings_say_of_systems_holds_in_paired_differences():
    found = {}
    for c in method_differences(load("systems")):
        bench = c.first.first.bench
        found[bench, c.metric, c.method, c.against] = c.mean, c.ci95, c.verdict
        found[bench, c.metric, c.against, c.method] = (
            -c.mean,
            c.ci95,
            {"better": "worse", "worse": "better"}.get(c.verdict, c.verdict),
        )

    def points(method, against, bench="tiny5w5s"):
        mean, ci95, _ = found[bench, "accuracy", method, against]
        return f"{100 * mean:.2f} ± {100 * ci95:.2f}"

    page = (DOCS / "findings.md").read_text(encoding="utf-8")
    assert f"prototypical networks by {points('map_ssvm', 'protonets')} points" in page
    assert f"ranks by the same cosines, is {points('map_ssvm', 'map_dlm')}\n  points below it" in page
    for bench, leader in (("omni5w1s", "memory_mod"), ("tiny5w5s", "map_ssvm")):
        verdicts = {v for (b, m, a, _), (_, _, v) in found.items() if (b, m, a) == (bench, "accuracy", leader)}
        assert verdicts == {"better"}
    full, plain = "matching_nets (context full)", "matching_nets (context none)"
    assert {found[b, "accuracy", full, plain][2] for b in ("omni5w1s", "tiny5w5s")} == {"undecided"}
    assert found["omni5w1s", "nll", full, plain][2] == "better"
    assert 9 <= 100 * found["omni5w1s", "accuracy", "protonets", "snail"][0] < 9.5
    for metric, method in itertools.product(("accuracy", "nll"), ("llama", "bmaml")):
        assert found["omni5w1s", metric, method, "maml"][2] == "undecided"
    assert f"(`abml`) is {points('maml', 'abml', 'omni5w1s')} points below it" in page
    assert f"(`platipus`) is {points('maml', 'platipus', 'omni5w1s')}. A learned" in page
    assert f"(`meta_lstm`) is {points('maml', 'meta_lstm', 'omni5w1s')} below." in page
    assert f"held near its start, is {points('imaml', 'maml', 'omni5w1s')} points above MAML" in page
    assert found["omni5w1s", "nll", "imaml", "maml"][2] == "worse"


def test_what_findings_say_of_distributions_over_psi_holds_in_paired_differences():
    benches = ("omni5w1s", "omni5w5s")
    less = {(b, *key): value for b in benches for key, value in against_maml(b).items()}
    own = {(b, r.method): r for b in benches for r in posterior_records(b) if r.protocol == "calibration"}

    def by(bench, metric, method, sign=1):
        mean, ci95 = less[bench, metric, method]
        return f"{100 * sign * mean:.2f} ± {100 * ci95:.2f}"

    page = " ".join((DOCS / "findings.md").read_text(encoding="utf-8").split())
    for bench, method in (("omni5w1s", "versa"), ("omni5w5s", "amortized_vi")):
        mean, ci95 = less[bench, "accuracy", method]
        assert abs(mean) < ci95
        assert less[bench, "ece", method][0] < -less[bench, "ece", method][1]
    assert f"has an ECE {by('omni5w1s', 'ece', 'versa', -1)} points lower" in page
    assert f"on `omni5w5s` one {by('omni5w5s', 'ece', 'amortized_vi', -1)} points lower" in page
    (points,) = [
        score([r], "ece")
        for r in load("systems")
        if (r.bench, r.method, r.protocol) == ("omni5w1s", "protonets", "calibration")
    ]
    assert f"whose class means are points, have {shown(points, 2, 100)} % on `omni5w1s`" in page
    assert f"(`bmaml`) the ECE is {by('omni5w1s', 'ece', 'bmaml')} points above MAML's" in page
    assert f"(`platipus`) {by('omni5w1s', 'ece', 'platipus')}." in page
    assert f"takes off {by('omni5w1s', 'ece', 'llama', -1)}." in page
    assert all(overconfidence(own["omni5w1s", method]) < 0 for method in ADAPTED)
    accuracies = " and ".join(by(bench, "accuracy", "imaml") for bench in benches)
    errors = " and ".join(shown(score([own[bench, "imaml"]], "ece"), 2, 100) for bench in benches)
    assert f"by {accuracies} points, with an ECE of {errors} %" in page


def test_what_findings_say_of_weights_holds_in_their_records():
    page = " ".join((DOCS / "findings.md").read_text(encoding="utf-8").split())

    llama, platipus = sweep("llama", "logdet_weight"), sweep("platipus", "kl_weight")
    errors = [shown(score(llama[weight], "ece"), 2, 100) for weight in (0.01, 0)]
    lost = paired(llama[0.01], llama[0], "accuracy")
    assert f"the ECE is {errors[0]} % where it was {errors[1]}, of a model that is" in page
    assert f"of a model that is {-100 * lost.mean:.2f} ± {100 * lost.ci95:.2f} points less accurate" in page
    assert all(abs(paired(llama[w], llama[0], "accuracy").mean) < 0.01 for w in (1e-5, 1e-4, 1e-3))
    errors_of = {weight: mean_ci95(score(runs, "ece").per_task)[0] for weight, runs in llama.items()}
    assert all(abs(errors_of[w] - errors_of[0]) < 0.01 for w in (1e-5, 1e-4, 1e-3))
    differences = [paired(runs, platipus[0], "accuracy") for weight, runs in platipus.items() if weight]
    most = max(differences, key=lambda d: abs(d.mean))
    assert f"within {100 * abs(most.mean):.2f} ± {100 * most.ci95:.2f} points of weight 0" in page
    confidences = sorted(
        -100 * overconfidence(r) for runs in platipus.values() for r in runs if r.protocol == "calibration"
    )
    assert f"under-confident by {confidences[0]:.2f} to {confidences[-1]:.2f} points" in page
    assert all(paired(runs, llama[0], "accuracy").mean < -0.1 for runs in platipus.values())


def test_what_timing_says_of_posteriors_holds_in_their_records():
    page = " ".join((DOCS / "timing.md").read_text(encoding="utf-8").split())
    cells = {cells[0].strip("` "): cells[1:] for cells in (r.strip("| ").split(" | ") for r in cost_rows())}

    def ratio(method, column):
        return re.search(r"\((.*)\)", cells[method][column])[1]

    training, training_memory, adapting, predicting, _ = range(5)
    assert f"`bmaml` trains in {ratio('bmaml', training)} times MAML's time" in page
    assert 0.9 < float(ratio("llama", training)) < 1.1
    times = " and ".join(ratio(method, predicting) for method in ("platipus", "abml"))
    assert f"`platipus` and `abml` predict in {times} times MAML's time" in page
    assert f"`imaml` adapts by 16 steps in {ratio('imaml', adapting)} times" in page
    assert float(ratio("imaml", training_memory)) <= 1
    assert float(ratio("meta_lstm", training_memory)) > 3


if __name__ == "__main__":  # print the tables, for the page
    for name, rows in TABLES.items():
        print(f"<!-- table: {name} -->", *rows(), sep="\n")  # noqa: T201
