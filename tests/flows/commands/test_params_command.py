"""`podium params`: what can be set, what results, where it comes from, how presets differ."""

import json

import pytest
import yaml

from flows import cli
from tasks.params.documentation import collect_meanings
from tasks.params.overlays import layers, list_preset_names, read_preset, resolve
from tasks.params.strict_yaml import leaves, parse_yaml, read_yaml
from tasks.params.tables import add_kinds, compare_presets, find_origins, format_differences, format_params, search
from tasks.stage.errors import ParamsError
from tests.flows.toy_runs import git
from tests.places import ROOT

PRESETS = ROOT / "presets"


def difference(base, first, second, presets):
    return format_differences(compare_presets(base, (first, second), presets), first, second)


@pytest.fixture
def base():
    return read_yaml(ROOT / "params.yaml")


@pytest.fixture
def presets(tmp_path):
    """Two presets that differ in three values, one of them a mapping that the other does not have."""
    (tmp_path / "one.yaml").write_text(
        "description: the first\nsource: ['a/b:c.md']\nexpected: {f1: 88.5, exact_match: 81}\n"
        "downstream: {squad: {kind: squad, finetune: {epochs: 3}, "
        "ipu: {finetune: {layers_per_ipu: [1, 1], replication_factor: 2}}}}\n"
    )
    (tmp_path / "two.yaml").write_text(
        "description: the second\ndownstream: {squad: {kind: squad, finetune: {epochs: 4, seed: 9}}}\n"
    )
    return tmp_path


def test_what_is_shown_is_a_params_file_with_the_values_that_result(base, presets):
    stated = [
        "downstream.squad.ipu.finetune.replication_factor=4",
        "downstream.squad.finetune.learning_rate=3e-5",
        "corpus.path='a b: c'",
    ]
    assert parse_yaml(format_params(base, "one", stated, presets)) == resolve(base, "one", stated, presets)


def test_every_value_names_where_it_was_said_last(base, presets):
    ipu, floor = "downstream.squad.ipu.finetune", "downstream.squad.gate.min_f1"
    stated = [f"{ipu}.replication_factor=4", f"{floor}=1", f"{floor}=2"]
    found = find_origins(base, "one", stated, presets)
    preset = str(presets / "one.yaml")
    assert found["downstream.squad.finetune.epochs"] == found[f"{ipu}.layers_per_ipu"] == preset
    assert found[f"{ipu}.replication_factor"] == f"--set {ipu}.replication_factor=4"
    assert found[floor] == f"--set {floor}=2"
    assert "downstream.squad.finetune.seed" not in found, "a default"
    assert find_origins(base, None, [], presets)["downstream.squad.finetune.seed"] == "params.yaml"
    lines = format_params(base, "one", [], presets).splitlines()
    assert [line.split("#")[1].strip() for line in lines if line.strip().startswith("epochs: 3 ")][0] == preset


def test_two_presets_differ_in_what_they_say_differently(base, presets):
    assert [line.split() for line in difference(base, "one", "two", presets).splitlines()] == [
        ["one", "two"],
        ["downstream.squad"],
        ["finetune.seed", "42", "9"],
        ["finetune.epochs", "3", "4"],
        ["ipu.finetune.layers_per_ipu", "[1,", "1]", "-"],
        ["ipu.finetune.replication_factor", "2", "-"],
    ], "and nothing of ipu.finetune, which is null in the one and has these keys in the other"
    assert difference(base, "two", "two", presets) == "two and two have the same values\n"


def test_a_parameter_is_found_by_its_name_and_by_what_is_said_of_it(base):
    said = collect_meanings(base)
    assert ("downstream.squad.rows.doc_stride", base["downstream"]["squad"]["rows"]["doc_stride"]) in [
        row[:2] for row in search(base, said, "STRIDE")
    ]
    names = [name for name, _, _ in search(base, said, "bootstrap")]
    assert names == ["downstream.squad.gate.confidence"], "found in its meaning"
    assert search(base, said, "no such thing") == []
    assert [row[0] for row in search(base, said, "")] == [name for name, _ in leaves(base)]


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("description: x\nexpected: {exact_macht: 1}\n", "expected.exact_macht"),
        ("description: x\nsource: a/b:c\n", "source='a/b:c'"),
        ("source: ['a/b:c']\n", "description is missing"),
    ],
)
def test_a_head_that_is_wrong_is_refused(tmp_path, head, said):
    (tmp_path / "wrong.yaml").write_text(head)
    with pytest.raises(ParamsError, match=f"(?s)wrong.yaml.*{said}"):
        read_preset("wrong", tmp_path)


@pytest.mark.parametrize("name", list_preset_names(PRESETS))
def test_every_shipped_preset_says_what_it_is_and_where_it_is_from(name):
    head = read_preset(name, PRESETS).head
    assert len(head.description) > 40
    assert head.source or name in ("small-files", "glue-sst2-small", "finetune", "modernbert-tiny")


@pytest.fixture
def podium(monkeypatch, capsys):
    """What `podium WORDS` prints on standard output, called in the project."""
    monkeypatch.chdir(ROOT)

    def run(*words):
        cli.cli.main(list(words), prog_name="podium", standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_what_is_shown_follows_the_words_of_the_command(podium):
    floor, entry = "downstream.squad.gate.min_f1=12.5", "downstream.glue-rte={kind: glue, task: rte}"
    shown = podium("params", "show", "--set", floor, "--set", entry)
    assert "min_f1: 12.5" in shown
    assert "task: rte" in shown
    shown = json.loads(podium("params", "show", "--json", "--set", floor, "--set", entry))
    assert shown["downstream.squad.gate.min_f1"] == {"value": 12.5, "origin": f"--set {floor}"}
    assert shown["downstream.glue-rte.task"] == {"value": "rte", "origin": f"--set {entry}"}
    assert shown["downstream.glue-rte.rows.row_length"]["origin"] == "default"
    assert "downstream.squad" not in podium("params", "show", "--json", "--set", "downstream.squad=null")


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("tuning.epoch=1", "tuning is not known; valid: base_model, "),
        ("validate.max_unknown=0.3", "did you mean max_unknown_share"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_or_with_all(podium, base, tmp_path, stated, said):
    for words in (["params", "show"], ["plan"]):
        with pytest.raises(ParamsError, match=said):
            podium(*words, "--set", stated)
    (layer,) = layers(None, [stated])
    (tmp_path / "ours.yaml").write_text(f"description: ours\n{yaml.safe_dump(layer.values)}")
    with pytest.raises(ParamsError, match=f"ours.yaml: .*{said}"):
        resolve(base, "ours", [], tmp_path)


def test_presets_are_listed_shown_and_compared(podium):
    assert len(podium("params", "presets").splitlines()) == 1 + len(list_preset_names(PRESETS))
    assert [line.split()[0] for line in podium("params", "presets", "pod64").splitlines()[1:]] == [
        name for name in list_preset_names(PRESETS) if "pod64" in name
    ]
    records = json.loads(podium("params", "presets", "list", "--json", "optimum"))
    assert {"name", "description", "source", "expected"} <= set(records[0])
    assert podium("params", "presets", "show", "small-files") == (PRESETS / "small-files.yaml").read_text("utf-8")
    different = json.loads(podium("params", "diff", "small-files", "--json"))
    assert different["corpus.source"] == {"small-files": "files", "demo": "demo"}
    found = podium("params", "list", "first_batch_size").split()
    assert found[:2] == ["pretrain.phase1.first_batch_size", "null"], "a default that the file leaves out"


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


@pytest.mark.parametrize("name", ["data.tag_scheme", "data.label_separator", "evaluate.null_threshold", "task"])
def test_parameters_of_every_kind_are_found_whatever_entries_there_are(name, base):
    for entries in ({}, base["downstream"]):
        values = add_kinds({**base, "downstream": entries})
        rows = search(values, collect_meanings(values), name)
        assert any(one.endswith(f".{name}") and one.startswith("downstream.") for one, _, _ in rows)
