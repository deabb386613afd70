"""Licenses and citations are those that the data's own files state, of that very data."""

import yaml

from builders import invoke
from mlpip_bench import registry
from mlpip_bench.datasets.terms import Terms, terms_of
from pictures import write_classes


def test_of_added_data(tmp_path):
    write_classes(tmp_path / "from", [f"kind {n}" for n in range(6)])
    stated = ("--license", "CC-BY-4.0", "--citation", "Us, 2026")
    invoke("data", "add", "kinds", "--from", tmp_path / "from", "--data-root", tmp_path / "root", *stated)
    source = registry.data_sources(tmp_path / "root")["kinds"]
    fingerprint = registry.family("kinds", tmp_path / "root").description.fingerprint
    assert terms_of(source, tmp_path / "root", fingerprint, {}) == Terms("CC-BY-4.0", "Us, 2026")
    assert terms_of(source, tmp_path / "root", "of other data", {}) == Terms()
    assert terms_of(source, None, fingerprint, {}) == Terms()


def test_of_prepared_data(tmp_path):
    folder = tmp_path / "icons"
    folder.mkdir()
    facts = {"license": {"MIT": 3, "OFL-1.1": 1}, "citation": "Many", "made_from": "abc"}
    (folder / "facts.yaml").write_text(yaml.safe_dump(facts))
    source = registry.data_sources()["icons"]
    assert terms_of(source, tmp_path, "", {"made_from": "abc"}) == Terms("MIT (3), OFL-1.1 (1)", "Many")
    (folder / "ATTRIBUTION.md").write_text("# Icons\n\nMade of these.\n")
    assert terms_of(source, tmp_path, "", {"made_from": "abc"}).attribution == "Made of these."
    assert terms_of(source, tmp_path, "", {"made_from": "other"}) == Terms()
    (folder / "facts.yaml").write_text("[")
    assert terms_of(source, tmp_path, "", {"made_from": "abc"}) == Terms()


def test_of_data_that_everybody_has(tmp_path):
    source = registry.data_sources()["omni"]
    assert terms_of(source, tmp_path, "", {}).license == "MIT"
    assert "Lake" in terms_of(source, None, "", {}).citation
