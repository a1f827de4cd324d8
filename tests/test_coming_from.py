"""docs/coming-from.md: its keys exist, and it denies nothing that there is."""

import re

from tasks.params.strict_yaml import leaves, read_yaml
from tests.places import ROOT

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
PARAMS = read_yaml(ROOT / "params.yaml")


def test_every_key_on_the_page_exists():
    known = {name for name, _ in leaves(PARAMS)}
    cells = [row.split("|")[2] for row in PAGE.splitlines() if row.startswith("| ")]
    named = {key for cell in cells for key in re.findall(r"`([a-z_]+(?:\.[a-z0-9_]+)+)`", cell)}
    assert len(named) > 80
    assert [key for key in sorted(named) if not any(key == name or _inside(key, name) for name in known)] == []


def test_what_there_is_under_another_name_is_not_denied():
    for flag in (
        *("max_train_samples", "max_eval_samples", "version_2_with_negative", "squad-v2", "null_score_diff_threshold"),
        "checkpoint_activations",
    ):
        rows = [row.split("|") for row in PAGE.splitlines() if row.startswith("| ") and f"`--{flag}`" in row]
        assert rows, flag
        assert [key for _, _, key, *_ in rows if "not supported" in key] == [], flag


def test_the_readme_counts_the_presets_that_there_are():
    heads = {path.stem: read_yaml(path) for path in (ROOT / "presets").glob("*.yaml")}
    published = {name for name, values in heads.items() if values.get("source")}
    ours = {name for name in published if name.endswith("-fast")}
    ported = re.compile(r"hyperparameters of .*(for IPUs|IPU recipe)")
    carried = {name for name in published if ported.search(heads[name]["description"])}
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{len(published - ours - carried)} published recipes of Optimum Graphcore" in readme


def _inside(key, name):
    return name.startswith(f"{key}.") or (".ipu." in f".{name}" and key.startswith(f"{name}."))
