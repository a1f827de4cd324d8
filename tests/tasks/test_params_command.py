"""`python -m tasks.params`: what results, where each value comes from, and how presets differ."""

import sys
from pathlib import Path

import pytest

from tasks import params
from tasks.common.errors import ParamsError
from tasks.common.strict_yaml import parse_yaml, read_yaml
from tasks.overlays import preset_names, read_preset, resolve
from tasks.params import diff, leaves, listing, origins, show

ROOT = Path(__file__).resolve().parents[2]
PRESETS = ROOT / "presets"


@pytest.fixture
def base():
    return read_yaml(ROOT / "params.yaml")


@pytest.fixture
def presets(tmp_path):
    """Two presets that differ in three values, one of them a mapping that the other does not have."""
    (tmp_path / "one.yaml").write_text(
        "description: the first\nsource: ['a/b:c.md']\nexpected: {f1: 88.5, exact_match: 81}\n"
        "finetune: {epochs: 3}\nipu: {finetune: {layers_per_ipu: [1, 1], replication_factor: 2}}\n"
    )
    (tmp_path / "two.yaml").write_text("description: the second\nfinetune: {epochs: 4, seed: 9}\n")
    return tmp_path


def test_what_is_shown_is_a_params_file_with_the_values_that_result(base, presets):
    stated = ["ipu.finetune.replication_factor=4", "finetune.learning_rate=3e-5", "corpus.path='a b: c'"]
    assert parse_yaml(show(base, "one", stated, presets)) == resolve(base, "one", stated, presets)


def test_every_value_names_where_it_was_said_last(base, presets):
    found = origins(base, "one", ["ipu.finetune.replication_factor=4", "gate.min_f1=1", "gate.min_f1=2"], presets)
    preset = str(presets / "one.yaml")
    assert found["finetune.epochs"] == preset
    assert found["ipu.finetune.layers_per_ipu"] == preset
    assert found["ipu.finetune.replication_factor"] == "--set ipu.finetune.replication_factor=4"
    assert found["gate.min_f1"] == "--set gate.min_f1=2"
    assert found["finetune.seed"] == "params.yaml"
    lines = show(base, "one", [], presets).splitlines()
    assert [line.split("#")[1].strip() for line in lines if line.startswith("  epochs: 3 ")][0] == preset
    values = [line for line in lines if not line.rstrip().endswith(":")]
    assert all(" # " in line for line in values)
    assert len(values) == len(list(leaves(resolve(base, "one", [], presets))))


def test_two_presets_differ_in_what_they_say_differently(base, presets):
    found = [line.split() for line in diff(base, "one", "two", presets).splitlines()]
    assert found[0] == ["one", "two"]
    assert ["finetune.epochs", "3", "4"] in found
    assert ["finetune.seed", str(base["finetune"]["seed"]), "9"] in found
    assert ["ipu.finetune.replication_factor", "2", "-"] in found
    assert ["ipu.finetune", "-", "null"] in found
    assert len(found) == 6
    assert diff(base, "two", "params.yaml", presets).count("\n") == 3
    assert diff(base, "two", "two", presets) == "two and two say the same\n"


def test_the_list_names_sources_and_their_figures(presets):
    lines = listing(presets).splitlines()
    assert lines[1].split("  ")[0] == "one"
    assert "exact_match 81, f1 88.5" in lines[1]
    assert lines[1].endswith("a/b:c.md")
    assert lines[2].split() == ["two", "none", "-"]


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("description: x\nexpected: {exact_macht: 1}\n", "expected.exact_macht is not known; did you mean exact_match"),
        ("description: x\nexpected: {f1: 101}\n", "less than or equal to 100"),
        ("description: x\nsource: a/b:c\n", "source='a/b:c'"),
        ("source: ['a/b:c']\n", "description is missing"),
    ],
)
def test_a_head_that_is_wrong_is_refused(tmp_path, head, said):
    (tmp_path / "wrong.yaml").write_text(head)
    with pytest.raises(ParamsError, match="wrong.yaml cannot be used") as error:
        read_preset("wrong", tmp_path)
    assert said in str(error.value)


def test_a_name_that_is_no_preset_is_refused_with_the_nearest(base, presets):
    for call in (lambda: diff(base, "one", "tow", presets), lambda: show(base, "tow", [], presets)):
        with pytest.raises(ParamsError, match="'tow' is not known; did you mean two"):
            call()


@pytest.mark.parametrize("name", preset_names(PRESETS))
def test_every_shipped_preset_says_what_it_is_and_where_it_is_from(name):
    head = read_preset(name, PRESETS).head
    assert len(head.description) > 40
    assert head.source or name in ("small-files", "glue-sst2-small")


def test_the_command_line_prints_or_exits_with_2(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["params", *words])
        params.main()
        return capsys.readouterr().out

    assert "min_f1: 12.5" in run("show", "--set", "gate.min_f1=12.5")
    assert "small-files" in run("diff", "small-files")
    assert "small-files" in run("list")
    with pytest.raises(ParamsError, match="did you mean min_f1?"):
        run("show", "--set", "gate.minf1=1")
    with pytest.raises(SystemExit, match="2"):
        run()
