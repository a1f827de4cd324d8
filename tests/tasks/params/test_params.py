"""params.yaml is read strictly: what is wrong is named, with the nearest valid name or the range."""

import dataclasses
import re

import pytest
import yaml
from ruamel.yaml import YAML

from ipu_model.ipu.config import IpuConfig
from tasks.params.entries import find_entry
from tasks.params.overlays import resolve
from tasks.params.schema import load_params, load_sections, validate_params
from tasks.params.strict_yaml import parse_yaml, read_yaml, yaml_text
from tasks.stage.errors import ParamsError
from tests.places import ROOT
from tests.plans import values_with

PRESETS = ROOT / "presets"


@pytest.fixture
def base():
    return read_yaml(ROOT / "params.yaml")


def problem(base, *overrides):
    with pytest.raises(ParamsError) as error:
        validate_params(resolve(base, None, overrides))
    return str(error.value)


def test_the_shipped_file_and_every_preset_are_valid(base):
    load_params(ROOT / "params.yaml")
    for preset in PRESETS.glob("*.yaml"):
        validate_params(resolve({}, preset.stem, [], PRESETS))


def test_unknown_and_missing_keys_and_sections_are_refused_at_once_with_the_nearest_name(base):
    base["pretran"] = base.pop("pretrain")
    base["model"]["num_layer"] = base["model"].pop("num_layers")
    section = base["downstream"]["squad"]
    section["finetune"]["learning_rat"] = section["finetune"].pop("learning_rate")
    section["fintune"] = section["finetune"]
    del section["parity"]
    message = problem(base)
    for line in (
        "pretran is not known; did you mean pretrain?",
        'pretrain is missing; its default is {"optimizer": "adamw", ',
        "downstream.squad.finetune.learning_rat is not known; did you mean learning_rate?",
        "downstream.squad.fintune is not known; did you mean finetune?",
        "model.num_layer is not known; did you mean num_layers?",
        "model.num_layers is missing",
        "downstream.squad.parity is missing; its default is {",
        "downstream.squad.finetune.learning_rate is missing; its default is 5e-05",
    ):
        assert line in message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("downstream.squad.finetune.learning_rate=-1", "greater than 0"),
        ("downstream.squad.finetune.epochs=abc", "valid number"),
        ("downstream.squad.finetune.epochs=.nan", "finite number"),
        ("pretrain.phase1.steps='3'", "valid integer"),
        ("pretrain.enabled=1", "valid boolean"),
        ("publish.examples='true'", "valid boolean"),
        ('downstream.squad.publish.data_name="two\\nlines"', "one line of text"),
        ("device.runtime=gpu", "'auto', 'cpu', 'cuda' or 'ipu'"),
        ("pretrain.phase1.schedule=trapezoid", "decay_fraction=null: trapezoid needs the share"),
        ("downstream.squad.finetune.decay_fraction=0.1", "decay_fraction=0.1 has no effect on linear"),
        ("model.num_heads=3", "must be a multiple of num_heads=3"),
        ("downstream.squad.rows.doc_stride=180", "must be smaller than the context"),
        ("pretrain_rows.phase2.row_length=1024", "exceeds model.max_positions=512"),
        ("publish.review=true", "needs target: hub"),
        ("corpus.separator=ab", "comma, semicolon, tab, pipe, or one character"),
        ("tracking.backends=[wandb, wandb]", "contains duplicates"),
        ("tracking.project=a/b", "should match pattern"),
        ("publish.target=hub", "needs downstream.squad.publish.repository: user/name"),
        ("packing=yes", "packing='yes'"),
        ("pretrain.phase1.steps=1:30", "steps='1:30'"),
        ("pretrain.phase1.learning_rate=1e400", "finite number"),
        ("ipu.phase1=3", "valid dictionary"),
        ("ipu.phase9=null", "did you mean phase"),
        ("model.family=roberta", "found roberta: set pretrain_rows.next_sentence"),
        ("downstream.squad.finetune.keep=best", "set evaluate_every_updates"),
        ("downstream.squad.finetune.patience=2", "set evaluate_every_updates"),
        ("downstream.squad.finetune.evaluate_every_updates=10", "set rows.held_out_fraction"),
        ("finetune", "must be section.key=value"),
        ("downstream.squad.finetune=3", "downstream.squad.finetune is a section"),
        ("downstream.squad.finetune.epochs={", "not YAML"),
        ("downstream.squad.finetune.epochs.x=1", "downstream.squad.finetune.epochs"),
        *((f"pretrain.seed={value}", "pretrain.seed") for value in ("&x [*x]", "!!python/name:os.system", "{[1]: 2}")),
    ],
)
def test_a_wrong_type_range_or_override_is_refused(base, override, message):
    refused = problem(base, override)
    assert message in refused
    assert override.split("=")[0].split(".")[0] in refused


def test_overrides_win_over_the_preset_and_the_file_is_not_read(base):
    values = resolve(base, "small-files", ["downstream.squad.finetune.epochs=7"], PRESETS)
    assert values["corpus"]["source"] == "files"
    assert values["downstream"]["squad"]["finetune"]["epochs"] == 7
    assert values["downstream"]["squad"]["publish"]["folder"] == "published/small-files"
    assert values == resolve({}, "small-files", ["downstream.squad.finetune.epochs=7"], PRESETS)
    assert base == read_yaml(ROOT / "params.yaml"), "the base is not changed"


def test_unknown_presets_and_entries_are_refused_with_the_nearest_name(base):
    for name, message in (("small-file", "did you mean small-files"), ("demo", "omit --preset")):
        with pytest.raises(ParamsError, match=message):
            resolve(base, name, [], PRESETS)
    with pytest.raises(ParamsError, match="did you mean squad"):
        find_entry(validate_params(base), "squat")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\na: 2\n", 'line 2: found duplicate key "a"'),
        (b"a: [1\n", "is not YAML"),
        (b"- a\n", "must contain sections"),
        (b"a: \xff\n", "not UTF-8"),
        (b"? [a, b]\n: 1\n", "."),
        (b"a: !!python/object/apply:os.getcwd []\n", "is not YAML"),
        (b"a: &x 1\nb: *x", r"line 2: aliases \(\*name\)"),
        (b"%YAML 1.1\n---\na: 010", "line 1: YAML 1.1"),
        pytest.param(b"[" * 200_000, "line 1: nested too deeply", id="deep"),
        (b"a: 2024-99-01", "put quotes around text"),
        (b"a: 1\n---\na: 2", "is not YAML"),
        pytest.param(b"a: " + b"9" * 5000, "cannot be read", id="long"),
    ],
)
def test_a_file_that_is_no_plain_mapping_of_yaml_1_2_is_refused(tmp_path, content, message):
    (tmp_path / "params.yaml").write_bytes(content)
    with pytest.raises(ParamsError, match=message):
        load_params(tmp_path / "params.yaml")


SCALARS = "3e-05 3e-5 1E5 +1e5 1.e5 .5e3 5. 010 -012 09 007 0o10 0o8 0x1F 0b11 1_000 1_000.5 1:30 1:30:30.5 -1:30 yes "
SCALARS += "no on off Yes NO y true True false null ~ .inf .nan 2024-01-02 1e400 1e inf 4e12345 '010' \"no\" +.5"


@pytest.mark.parametrize("text", SCALARS.split())
def test_a_value_is_read_as_dvc_reads_it_and_what_is_written_reads_alike_for_everybody(text):
    ours = parse_yaml(f"a: {text}\n")
    assert repr(ours) == repr(YAML(typ="safe").load(f"a: {text}\n"))
    written = yaml_text({text: text, "list": [text], "value": ours["a"]})
    assert repr(YAML(typ="safe").load(written)) == repr(yaml.safe_load(written)) == repr(parse_yaml(written))
    assert parse_yaml(written)["list"] == [text]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("pretrain.seed=010", 10),
        ("pretrain.seed=0o10", 8),
        ("pretrain.phase1.steps=1_000", 1000),
        ("pretrain.phase1.learning_rate=3e-05", 3e-5),
        ("pretrain.phase1.learning_rate=.5e-4", 5e-5),
        ("packing=false", False),
        ("publish.language=no", "no"),
        ("publish.language='no'", "no"),
        ("publish.language=NO", "NO"),
        ("publish.language=true", "true"),
        ("tracking.name=007", "007"),
        ("tracking.name=1e5", "1e5"),
        ("corpus.path=2024-01-02", "2024-01-02"),
        ("corpus.dataset_revision=4e12345", "4e12345"),
        ("corpus.dataset_revision=null", None),
        ("downstream.squad.parity.against=[cpu:bf16,ipu]", ["cpu:bf16", "ipu"]),
        ("downstream.squad.publish.data_name=1.10", "1.10"),
    ],
)
def test_an_override_is_text_where_the_type_is_text(base, override, value):
    read = validate_params(resolve(base, None, [override]))
    for word in override.partition("=")[0].split("."):
        read = read[word] if isinstance(read, dict) else getattr(read, word)
    assert read == value
    assert type(read) is type(value)


def test_a_value_of_another_type_is_refused_in_a_file(base):
    base["corpus"]["dataset_revision"], base["pretrain"]["seed"] = parse_yaml("[1234567, 1:30]")
    message = problem(base)
    assert re.search("dataset_revision=1234567: .* put quotes around text", message)
    assert re.search("seed='1:30': .* valid integer", message)


IPU_SECTIONS = ("ipu.phase1", "ipu.phase2", "downstream.squad.ipu.finetune", "downstream.squad.ipu.predict")


@pytest.mark.parametrize("preset", [None, "bert", "ipu-base-pod16-examples"])
@pytest.mark.parametrize("section", IPU_SECTIONS)
def test_an_override_takes_every_key_of_an_ipu_config(base, preset, section):
    for field in dataclasses.fields(IpuConfig):
        values = resolve(base, preset, [f"{section}.{field.name}=2", f"{section}.device_iterations=3"], PRESETS)
        for word in section.split("."):
            values = values[word]
        assert values["device_iterations"] == 3
        assert values[field.name] == (3 if field.name == "device_iterations" else 2)
    assert resolve(base, preset, [f"{section}.training_layers_per_ipu=[6, 6]"], PRESETS), "a name of before"
    for wrong in (f"{section}.layers_per_ip=[6]", f"{section}={{layers_per_ip: [6]}}"):
        with pytest.raises(ParamsError, match=f"{section}.layers_per_ip is not known; did you mean layers_per_ipu"):
            resolve(base, preset, [wrong], PRESETS)


def test_a_stage_looks_at_its_own_sections_alone(tmp_path):
    values = values_with("corpus.demo_documents=7")
    values["pretrain"]["seed"] = values["corpus"]["seed"] = -1
    values["validate"]["min_documents"] = 7
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(values))
    assert load_sections("tokenizer", "packing", path=path).packing is values["packing"]
    assert load_sections("validate_", path=path).validate_.min_documents == 7
    with pytest.raises(ParamsError) as refused:
        load_sections("corpus", path=path)
    assert "corpus.seed=-1" in str(refused.value)
    assert "pretrain" not in str(refused.value)
