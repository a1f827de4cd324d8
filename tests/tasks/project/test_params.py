"""params.yaml is read strictly: what is wrong is named, with the nearest valid name or the range."""

import subprocess
import sys

import pytest

from tasks.project.errors import ParamsError
from tasks.project.overlays import resolve
from tasks.project.params import check, load_params
from tasks.project.strict_yaml import read_yaml
from tests.places import ROOT

PRESETS = ROOT / "presets"


@pytest.fixture
def base():
    return read_yaml(ROOT / "params.yaml")


def problem(base, *overrides):
    with pytest.raises(ParamsError) as error:
        check(resolve(base, None, overrides))
    return str(error.value)


def test_the_shipped_file_and_every_preset_are_valid(base):
    load_params(ROOT / "params.yaml")
    for preset in PRESETS.glob("*.yaml"):
        check(resolve({}, preset.stem, [], PRESETS))


def test_an_unknown_key_is_refused_with_the_nearest_name(base):
    said = "downstream.squad.finetune.learning_rat is not known; did you mean learning_rate?"
    assert said in problem(base, "downstream.squad.finetune.learning_rat=1")
    base["model"]["num_layer"] = base["model"].pop("num_layers")
    section = base["downstream"]["squad"]["finetune"]
    section["learning_rat"] = section.pop("learning_rate")
    message = problem(base)
    for one in (said, "model.num_layer is not known; did you mean num_layers?", "model.num_layers is missing"):
        assert one in message, "all problems are said at once"


def test_a_key_of_an_entry_that_is_missing_is_refused_with_its_default(base):
    del base["downstream"]["squad"]["finetune"]["learning_rate"]
    del base["downstream"]["squad"]["parity"]
    message = problem(base)
    assert "downstream.squad.finetune.learning_rate is missing; its default is 5e-05" in message
    assert "downstream.squad.parity is missing; its default is {" in message


def test_an_unknown_or_missing_section_is_refused(base):
    base["pretran"] = base.pop("pretrain")
    message = problem(base)
    assert "pretran is not known; did you mean pretrain?" in message
    assert 'pretrain is missing; its default is {"optimizer": "adamw", ' in message
    base = read_yaml(ROOT / "params.yaml")
    base["downstream"]["squad"]["fintune"] = base["downstream"]["squad"]["finetune"]
    assert "downstream.squad.fintune is not known; did you mean finetune?" in problem(base)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("downstream.squad.finetune.learning_rate=-1", "greater than 0"),
        ("downstream.squad.finetune.epochs=abc", "valid number"),
        ("downstream.squad.finetune.epochs=.nan", "finite number"),
        ("pretrain.phase1.steps=1.5", "valid integer"),
        ("pretrain.phase1.steps='3'", "valid integer"),
        ("pretrain.enabled=1", "valid boolean"),
        ("publish.examples=1", "valid boolean"),
        ("publish.examples='true'", "valid boolean"),
        ('downstream.squad.publish.data_name="two\\nlines"', "one line of text"),
        ("device.runtime=gpu", "'auto', 'cpu', 'cuda' or 'ipu'"),
        ("downstream.squad.gate.min_f1=101", "less than or equal to 100"),
        ("model.num_heads=3", "must be a multiple of num_heads=3"),
        ("downstream.squad.rows.doc_stride=180", "must be smaller than the context"),
        ("pretrain_rows.phase2.row_length=1024", "exceeds model.max_positions=512"),
        ("publish.target=hub", "needs downstream.squad.publish.repository: user/name"),
    ],
)
def test_a_wrong_type_or_range_is_refused(base, override, said):
    message = problem(base, override)
    assert said in message
    assert override.split("=")[0].split(".")[0] in message


def test_overrides_win_over_the_preset_and_the_file_is_not_read(base):
    values = resolve(base, "small-files", ["downstream.squad.finetune.epochs=7"], PRESETS)
    assert values["corpus"]["source"] == "files"
    assert values["downstream"]["squad"]["finetune"]["epochs"] == 7
    assert values["downstream"]["squad"]["publish"]["folder"] == "published/small-files"
    assert values == resolve({}, "small-files", ["downstream.squad.finetune.epochs=7"], PRESETS)
    assert base == read_yaml(ROOT / "params.yaml"), "the base is not changed"


def test_a_number_yaml_reads_as_text_is_still_a_number(base):
    values = resolve(base, None, ["downstream.squad.finetune.learning_rate=3e-5"])
    assert values["downstream"]["squad"]["finetune"]["learning_rate"] == 3e-5


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["finetune"], "must read section.key=value"),
        (["downstream.squad.finetune=3"], "downstream.squad.finetune is a section"),
        (["downstream.squad.finetune.epochs={"], "not YAML"),
        (["downstream.squad.finetune.epochs.x=1"], "downstream.squad.finetune.epochs"),
    ],
)
def test_a_malformed_override_is_refused(base, overrides, said):
    assert said in problem(base, *overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["corpus.source=none"], "leaves no text for rows: set pretrain_rows.source"),
        (["pretrain_rows.source=files"], "set corpus.source to none"),
        (["pretrain_rows.source=hub", "corpus.source=none"], "set tokenizer.source to file or hub"),
    ],
)
def test_pre_training_has_one_source(base, overrides, said):
    assert said in problem(base, *overrides)
    prepared = ["pretrain_rows.source=files", "corpus.source=none", "tokenizer.source=file"]
    assert check(resolve(base, None, prepared)).pretrain_rows.source == "files"


def test_an_unknown_preset_is_refused_with_the_nearest_name(base):
    with pytest.raises(ParamsError, match="'small-file' is not known; did you mean small-files"):
        resolve(base, "small-file", [], PRESETS)


def test_the_demo_is_run_without_a_preset(base):
    with pytest.raises(ParamsError, match=r"demo is params.yaml itself: leave --preset out"):
        resolve(base, "demo", [], PRESETS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: 1\na: 2\n", "line 2: the key 'a' stands twice"),
        (b"a: [1\n", "is not YAML"),
        (b"- a\n", "must hold sections"),
        (b"a: \xff\n", "not UTF-8"),
        (b"a: !!python/object/apply:os.getcwd []\n", "is not YAML"),
    ],
)
def test_a_file_that_is_no_plain_mapping_is_refused(tmp_path, content, said):
    (tmp_path / "params.yaml").write_bytes(content)
    with pytest.raises(ParamsError, match=said):
        read_yaml(tmp_path / "params.yaml")


def test_the_module_is_its_own_command_line_and_exits_with_2_for_a_wrong_word():
    command = [sys.executable, "-m", "flows", "params", "show", "--set", "downstream.squad.gate.minf1=1"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "did you mean min_f1?" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(("old", "now"), [("layers", "none"), ("all", "optimizer")])
def test_old_values_of_compile_are_answered_with_what_to_write_now(old: str, now: str) -> None:
    with pytest.raises(ParamsError, match=f"device.compile.*write {now} in the place of {old}"):
        check(resolve(read_yaml(ROOT / "params.yaml"), None, [f"device.compile={old}"]))
