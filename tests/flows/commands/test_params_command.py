"""`podium params`: what can be set, what results, where it comes from, how presets differ."""

import json
import re

import pytest
import yaml

from flows import cli
from tasks.params.documentation import collect_meanings
from tasks.params.overlays import layers, list_preset_names, read_preset, resolve
from tasks.params.strict_yaml import leaves, parse_yaml, read_yaml
from tasks.params.tables import add_kinds, compare_presets, format_differences, search
from tasks.stage.errors import ParamsError
from tests.flows.toy_runs import git
from tests.places import ROOT
from tests.plans import resolved_params

PRESETS = ROOT / "presets"


@pytest.fixture
def base():
    return read_yaml(ROOT / "params.yaml")


@pytest.fixture
def presets(tmp_path):
    """Two presets that differ in three values, one of them a mapping that the other does not have."""
    finetune = "{epochs: 3}, ipu: {finetune: {layers_per_ipu: [1, 1], replication_factor: 2}}"
    for name, entry in (("one", finetune), ("two", "{epochs: 4, seed: 9}")):
        text = f"description: {name}\ndownstream: {{squad: {{kind: squad, finetune: {entry}}}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def test_two_presets_differ_in_what_they_say_differently(base, presets):
    def difference(*names):
        return format_differences(compare_presets(base, names, presets), *names)

    assert [line.split() for line in difference("one", "two").splitlines()] == [
        ["one", "two"],
        ["downstream.squad"],
        ["finetune.seed", "42", "9"],
        ["finetune.epochs", "3", "4"],
        ["ipu.finetune.layers_per_ipu", "[1,", "1]", "-"],
        ["ipu.finetune.replication_factor", "2", "-"],
    ], "and nothing of ipu.finetune, which is null in the one and has these keys in the other"
    assert difference("two", "two") == "two and two have the same values\n"


def test_a_parameter_is_found_by_its_name_and_by_what_is_said_of_it(base):
    meanings = collect_meanings(base)
    stride = ("downstream.squad.rows.doc_stride", base["downstream"]["squad"]["rows"]["doc_stride"])
    assert stride in [row[:2] for row in search(base, meanings, "STRIDE")]
    names = [name for name, _, _ in search(base, meanings, "bootstrap")]
    assert names == ["downstream.squad.gate.confidence"], "found in its meaning"
    assert search(base, meanings, "no such thing") == []
    assert [row[0] for row in search(base, meanings, "")] == [name for name, _ in leaves(base)]
    for entries in ({}, base["downstream"]):
        values = add_kinds({**base, "downstream": entries})
        for name in ("data.tag_scheme", "data.label_separator", "evaluate.null_threshold", "task"):
            names = [row[0] for row in search(values, collect_meanings(values), name)]
            assert any(row.startswith("downstream.") and row.endswith(f".{name}") for row in names), "of every kind"


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("description: x\nexpected: {exact_macht: 1}\n", "expected.exact_macht"),
        ("description: x\nsource: a/b:c\n", "source='a/b:c'"),
        ("source: ['a/b:c']\n", "description is missing"),
    ],
)
def test_a_head_that_is_wrong_is_refused(tmp_path, head, reason):
    (tmp_path / "wrong.yaml").write_text(head)
    with pytest.raises(ParamsError, match=f"(?s)wrong.yaml.*{reason}"):
        read_preset("wrong", tmp_path)


@pytest.mark.parametrize("name", list_preset_names(PRESETS))
def test_every_shipped_preset_says_what_it_is_and_where_it_is_from(name):
    head = read_preset(name, PRESETS).head
    assert len(head.description) > 40
    assert head.source or name in ("small-files", "glue-sst2-small", "finetune", "modernbert-tiny")


@pytest.fixture
def podium(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)

    def run(*words):
        cli.cli.main(list(words), prog_name="podium", standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_what_is_shown_is_a_params_file_with_the_values_that_result_each_with_where_it_was_said_last(podium):
    floor, entry = "downstream.squad.gate.min_f1", "downstream.glue-rte={kind: glue, task: rte}"
    settings = [f"{floor}=1", f"{floor}=12.5", entry, "corpus.path='a b: c'"]
    words = ["params", "show", "--preset", "small-files", *(word for text in settings for word in ("--set", text))]
    preset = "presets/small-files.yaml"
    shown = podium(*words)
    assert parse_yaml(shown) == resolved_params(ROOT, "small-files", settings)
    assert re.search(rf"epochs: 2 +# {preset}", shown)
    values = json.loads(podium(*words, "--json"))
    assert values[floor] == {"value": 12.5, "origin": f"--set {floor}=12.5"}
    assert values["downstream.glue-rte.task"] == {"value": "rte", "origin": f"--set {entry}"}
    assert values["downstream.squad.finetune.epochs"] == {"value": 2, "origin": preset}
    assert values["downstream.squad.finetune.seed"]["origin"] == "default"
    values = json.loads(podium("params", "show", "--json", "--set", "downstream.squad=null"))
    assert values["pretrain.seed"]["origin"] == "params.yaml"
    assert not [name for name in values if name.startswith("downstream.squad")]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("tuning.epoch=1", "tuning is not known; valid: base_model, "),
        ("validate.max_unknown=0.3", "did you mean max_unknown_share"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_or_with_all(podium, base, tmp_path, setting, reason):
    for words in (["params", "show"], ["plan"]):
        with pytest.raises(ParamsError, match=reason):
            podium(*words, "--set", setting)
    (layer,) = layers(None, [setting])
    (tmp_path / "ours.yaml").write_text(f"description: ours\n{yaml.safe_dump(layer.values)}")
    with pytest.raises(ParamsError, match=f"ours.yaml: .*{reason}"):
        resolve(base, "ours", [], tmp_path)


def test_presets_are_listed_shown_and_compared(podium):
    names = list_preset_names(PRESETS)
    assert len(podium("params", "presets").splitlines()) == 1 + len(names)
    rows = podium("params", "presets", "pod64").splitlines()[1:]
    assert [row.split()[0] for row in rows] == [name for name in names if "pod64" in name]
    records = json.loads(podium("params", "presets", "list", "--json", "optimum"))
    assert {"name", "description", "source", "expected"} <= set(records[0])
    assert podium("params", "presets", "show", "small-files") == (PRESETS / "small-files.yaml").read_text("utf-8")
    different = json.loads(podium("params", "diff", "small-files", "--json"))
    assert different["corpus.source"] == {"small-files": "files", "demo": "demo"}
    row = podium("params", "list", "first_batch_size").split()
    assert row[:2] == ["pretrain.phase1.first_batch_size", "null"], "a default that the file leaves out"


def test_an_edited_params_yaml_is_named_where_a_preset_runs_without_it(toy_project, monkeypatch, capsys):
    def noted(*words):
        cli.cli.main(["plan", *words], prog_name="podium", standalone_mode=False)
        return "edits in params.yaml are ignored: preset bert" in capsys.readouterr().err

    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(toy_project.parent))
    assert not noted("--preset", "bert"), "no git, nothing to compare with"
    for words in (["init", "-q"], ["add", "params.yaml"], ["commit", "-qm", "as shipped"]):
        git(toy_project, *words)
    assert not noted("--preset", "bert")
    params = toy_project / "params.yaml"
    params.write_text(params.read_text().replace("min_documents: 10", "min_documents: 11"))
    assert noted("--preset", "bert")
    assert not noted(), "it is read"
