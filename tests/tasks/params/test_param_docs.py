"""What the types of params.yaml say of themselves: a meaning for each parameter, and schemas that hold what they do."""

import copy
import json
import os
import shutil
import subprocess
import sys

import pytest
from jsonschema import Draft202012Validator

from docs.reference_pages import PAGE, fill_presets_page
from flows.cli import cli
from tasks.params.documentation import collect_meanings, params_schema, preset_schema
from tasks.params.downstream import defaults_of, kind_names
from tasks.params.overlays import list_preset_names, resolve
from tasks.params.schema import default_values, validate_params
from tasks.params.strict_yaml import leaves, parse_yaml, read_yaml
from tasks.stage.errors import WRONG_USAGE, ParamsError
from tests.places import ROOT
from tests.tasks.downstream.entries import lay_over, values_with, write_parameters

PRESETS = ROOT / "presets"
PARAMS = read_yaml(ROOT / "params.yaml")


@pytest.fixture(scope="module")
def whole():
    return Draft202012Validator(params_schema())


@pytest.fixture(scope="module")
def partial():
    return Draft202012Validator(preset_schema())


def test_every_parameter_has_a_meaning():
    values = default_values()
    values["downstream"] = {kind: defaults_of(kind, kind) for kind in kind_names()}
    meanings = collect_meanings(values)
    assert len(meanings) > 250
    assert [name for name, text in meanings.items() if not text] == [], "write a docstring under the field"
    assert set(meanings) >= {name for name, _ in leaves(values)}


def test_the_schemas_that_a_project_names_are_written_there_and_refuse_a_wrong_key(tmp_path, monkeypatch, capsys):
    files = [ROOT / "params.yaml", *PRESETS.glob("*.yaml")]
    for path in files:
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        (tmp_path / path.relative_to(ROOT)).write_bytes(path.read_bytes())
    shutil.copy2(ROOT / "dvc.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    cli.main(["params", "schema", "--write"], standalone_mode=False)
    assert capsys.readouterr().out == "schemas/params.json\nschemas/preset.json\n"
    validators = {}
    for path in (tmp_path / "schemas").iterdir():
        schema = json.loads(path.read_text(encoding="utf-8"))
        Draft202012Validator.check_schema(schema)
        validators[path] = Draft202012Validator(schema)
    used = set()
    for path in files:
        first, _, text = path.read_text(encoding="utf-8").partition("\n")
        named = tmp_path / path.relative_to(ROOT).parent / first.removeprefix("# yaml-language-server: $schema=")
        used.add(named.resolve())
        [error] = validators[named.resolve()].iter_errors({**parse_yaml(text), "modle": {}})
        assert "modle" in error.message, path.name
    assert used == {*validators}


def test_params_yaml_and_every_preset_fit_the_schemas(whole, partial):
    assert [error.message for error in whole.iter_errors(PARAMS)] == []
    assert len(list_preset_names(PRESETS)) > 40
    for name in list_preset_names(PRESETS):
        errors = [*whole.iter_errors(resolve({}, name, [], PRESETS))]
        errors += partial.iter_errors(read_yaml(PRESETS / f"{name}.yaml"))
        assert [error.message for error in errors] == [], name


WRONG = [
    ("pretrain.phase1.stepps", 3),
    ("pretrain.phase1.steps", 0),
    ("pretrain.phase1.steps", "3"),
    ("pretrain.phase1.schedule", "linaer"),
    ("device.runtime", "gpu"),
    ("validate.near_duplicates", 0.4),
    ("corpus.path", "two\nlines"),
    ("publish.language", "two words"),
    ("downstream.squad.kind", "sqad"),
    ("downstream.squad.task", "sst2"),
    ("downstream.squad.gate.min_f1", 101),
    ("downstream.squad.publish.repository", "a/b/c"),
    ("tracking.backends", ["tensorbord"]),
    ("downstream.Capitals", {"kind": "squad"}),
]
"""Dotted name and value, one mistake each."""


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_what_the_types_refuse_the_schemas_refuse(whole, partial, name, value):
    *sections, key = name.split(".")
    alone = {key: value}
    for section in reversed(sections):
        alone = {section: alone}
    values, preset = copy.deepcopy(PARAMS), {"description": "x", "downstream": {"squad": {"kind": "squad"}}}
    lay_over(values, alone)
    lay_over(preset, alone)
    with pytest.raises(ParamsError):
        validate_params(values)
    assert not whole.is_valid(values)
    assert not partial.is_valid(preset)


def test_a_key_that_is_missing_is_refused_in_params_yaml_and_not_in_a_preset(whole, partial):
    values = copy.deepcopy(PARAMS)
    del values["downstream"]["squad"]["rows"]["doc_stride"]
    with pytest.raises(ParamsError, match="doc_stride is missing"):
        validate_params(values)
    assert [error.message for error in whole.iter_errors(values)] == ["'doc_stride' is a required property"]
    assert partial.is_valid({"description": "x", "model": {"num_layers": 2}})
    assert not partial.is_valid({"model": {"num_layers": 2}}), "a preset says what it is"


def test_the_page_of_presets_is_as_the_presets_are():
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert fill_presets_page(text, PRESETS) == text, "run `python -m docs.reference_pages`"
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| [`")]
    for name in list_preset_names(PRESETS):
        assert sum(f"[`{name}`](../presets/{name}.yaml)" in cell for cell in first) == 1


@pytest.mark.soak
def test_stages_run_without_docstrings_and_asserts(tmp_path):
    """But for Great Expectations, which does not go without docstrings."""
    small = {"squad": {"data": {"demo_train": 60, "demo_dev": 20}}}
    write_parameters(tmp_path, values_with(small, corpus={"demo_documents": 200}, tokenizer={"vocabulary_size": 300}))

    def run(stage):
        env = {**os.environ, "PYTHONOPTIMIZE": "2", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", *f"tasks.{stage}".split()]
        return subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=300)

    for stage in ("corpus.corpus", "vocabulary.tokenizer", "pretraining.rows.pretrain_rows phase1"):
        made = run(stage)
        assert made.returncode == 0, f"{stage}: {made.stderr}"
    refused = run("validation.validate corpus")
    assert (refused.returncode, refused.stderr.count("\n")) == (WRONG_USAGE, 1)
    assert refused.stderr.startswith("error: PYTHONOPTIMIZE=2")
