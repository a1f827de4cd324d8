"""dvc.yaml: which stages parameters make, what each starts from, and what becomes of those that go away."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tasks.params.schema import validate_params
from tasks.plan.dvc_records import LOCK, compute_md5
from tasks.plan.plan_file import Plan, make_plan
from tasks.plan.stages import define
from tasks.plan.writing import remove_stale, write_plan, write_project_plan
from tasks.stage.errors import InputError, ParamsError
from tests.places import ROOT
from tests.plans import GIVEN, values_with, write_outs

PREPARED = ("pretrain_rows.source=files", "corpus.source=none", "tokenizer.source=file")
ONE_PHASE = ("pretrain.phase2.steps=0", "pretrain_rows.phase2.row_length=4096")
THIRD = ("pretrain.phases=[phase1, phase2, phase3]", "pretrain.phase3.steps=10", "pretrain_rows.phase3.row_length=64")
OF_AN_ENTRY = {"examples", "rows", "finetune", "predict", "predict_released", "evaluate", "gate"}
TEXT = {"corpus@text", "validate@corpus", "tokenizer"}
ROTARY = ("model.family=modernbert", "pretrain_rows.next_sentence=false", "pretrain.phase2.global_rope_theta=2e4")
TEXTS = "downstream.texts={kind: classification, publish: {folder: published/texts}}"


def plan_of(*overrides: str) -> Plan:
    return make_plan(define(validate_params(values_with(*overrides))))


def stages_of(phase: str) -> set[str]:
    return {f"{stage}@{phase}" for stage in ("pretrain_rows", "validate", "pretrain")}


@pytest.mark.parametrize(
    ("overrides", "stages", "start"),
    [
        ((), TEXT | stages_of("phase1") | stages_of("phase2"), ["models/phase2"]),
        (GIVEN, {"tokenizer", "base_model@given"}, ["models/base"]),
        (("pretrain.enabled=false",), TEXT, []),
        (ONE_PHASE, TEXT | stages_of("phase1"), ["models/phase1"]),
        (PREPARED, {"tokenizer"} | stages_of("phase1") | stages_of("phase2"), ["models/phase2"]),
    ],
)
def test_parameters_choose_stages_and_start(overrides: tuple[str, ...], stages: set[str], start: list[str]) -> None:
    plan = plan_of(*overrides)
    assert set(plan) == stages | {f"{stage}@squad" for stage in OF_AN_ENTRY}
    assert [dep for dep in plan["finetune@squad"].deps if dep.startswith("models/")] == start
    if overrides == PREPARED:
        assert "inputs/prepared" in plan["pretrain_rows@phase1"].deps


def test_only_a_gate_that_compares_scores_the_released_model() -> None:
    for folder, places in (("none", []), ("inputs/released", ["inputs/released"])):
        plan = plan_of(f"downstream.squad.gate.released={folder}")
        assert "predict_released@squad" not in plan
        assert [dep for dep in plan["gate@squad"].deps if "released" in dep] == places


def test_a_third_phase_starts_from_the_second() -> None:
    plan = plan_of(*THIRD)
    assert stages_of("phase1") | stages_of("phase2") | stages_of("phase3") <= set(plan)
    starts = {name: [dep for dep in stage.deps if dep.startswith("models/")] for name, stage in plan.items()}
    trained = ("pretrain@phase1", "pretrain@phase2", "pretrain@phase3", "finetune@squad")
    assert [starts[name] for name in trained] == [[], ["models/phase1"], ["models/phase2"], ["models/phase3"]]
    read = {"data/rows/phase3/manifest.json", "reports/validation/phase3.json", "metrics/pretrain-phase3.json"}
    assert read <= set(plan["gate@squad"].deps)
    assert not read & set(plan_of()["gate@squad"].deps)
    of_params = [name for name in plan["pretrain@phase3"].params["params.yaml"] if "phase" in name or "ipu" in name]
    assert set(of_params) == {"pretrain.phase3"}, "what a file leaves out is no dependency"


def test_later_phases_keep_the_base_of_rotation_that_one_before_them_set() -> None:
    params = validate_params(values_with(*ROTARY, *THIRD))
    assert [params.pretrain.find_theta(phase) for phase in params.pretrain.phases] == [None, "phase2", "phase2"]
    plan = plan_of(*ROTARY, *THIRD, "device.runtime=ipu")
    compiled = plan["compile_pretrain@phase3"].params["params.yaml"]
    assert "pretrain.phase2.global_rope_theta" in compiled
    assert "pretrain.phase2.global_rope_theta" not in plan["compile_pretrain@phase1"].params["params.yaml"]


@pytest.mark.parametrize("runtime", ["cpu", "cuda", "ipu", "auto"])
def test_programs_are_built_ahead_only_where_there_may_be_ipus(runtime: str) -> None:
    plan = plan_of(f"device.runtime={runtime}")
    programs = {name for name in plan if name.startswith("compile")}
    ahead = {"compile@squad", "compile_pretrain@phase1", "compile_pretrain@phase2"}
    assert programs == (ahead if runtime == "ipu" else set())
    for training, report in (("pretrain@phase1", "phase1"), ("finetune@squad", "squad-finetune")):
        deps = plan[training].deps
        assert (f"reports/compile-{report}.json" in deps) == bool(programs)
        assert ("inputs/ipu" in deps) == (runtime == "auto"), "what the program report speaks of elsewhere"
    parity = plan_of("downstream.squad.parity.against=[ipu, 'cpu:bf16']")
    assert ["inputs/ipu" in parity[f"parity@squad-{host}"].deps for host in ("ipu", "cpu:bf16")] == [True, False]


def test_each_entry_starts_where_it_says_and_waits_for_nothing_else() -> None:
    starts = {"one": "phase1", "two": "phase2", "given": "base", "furthest": "auto"}
    entry = "downstream.{0}={{kind: squad, start: {1}, publish: {{folder: published/{0}}}}}"
    plan = plan_of("base_model.source=folder", *(entry.format(*start) for start in starts.items()))
    folders = {name: {dep for dep in plan[f"finetune@{name}"].deps if dep.startswith("models/")} for name in starts}
    expected = {**starts, "furthest": "phase2"}
    assert folders == {name: {f"models/{start}"} for name, start in expected.items()}
    assert "pretrain@phase2" not in plan.with_upstream(["gate@one"]), "it starts before"
    assert not [name for name in plan.with_upstream(["gate@given"]) if name.startswith("pretrain")]
    assert "pretrain@phase1" in plan.with_upstream(["gate@one"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (THIRD[:2], "pretrain.phase3.steps=10 needs pretrain_rows.phase3.row_length"),
        ([*THIRD, "pretrain.phase2.steps=0"], "but pretrain.phase2.steps is 0"),
        ([*THIRD, "pretrain_rows.phase3.row_length=0"], "row_length=0: input should be greater"),
        ([*ROTARY, "pretrain_rows.phase2.row_length=64"], "row_length=64 is not longer"),
        (THIRD[1:2], "pretrain.phase3 is not known"),
        (THIRD[:1], "phases names phase3"),
        (["pretrain.phases=[phase1, seed]"], "seed is the name of something else"),
        ([*ONE_PHASE, "downstream.squad.start=phase2"], "squad.start: phase2 needs .* pretrain.phase2.steps above 0"),
        (["downstream.squad.start=base"], "base needs a base model"),
        (["downstream.squad.start=phase1", "pretrain.enabled=false"], "phase1 needs pretrain.enabled"),
        (["corpus.source=none"], "leaves no text"),
        (["pretrain_rows.source=files"], "set corpus.source to none"),
        (["pretrain_rows.source=hub", "corpus.source=none"], "set tokenizer.source to file or hub"),
        (["corpus.source=none", "pretrain.enabled=false"], "train a vocabulary"),
        (["downstream.again={kind: squad, publish: {folder: published/podium-demo}}"], "give each release its own"),
        (["downstream.../../docs={kind: squad}"], "not known"),
        (["downstream={../../docs: {kind: squad}}"], "must consist of lowercase letters"),
        (["downstream.phase1={kind: squad}"], "reserved for other files"),
        (["downstream.squad.parity.against=[../../docs]"], "must be RUNTIME"),
        (["downstream.new.data.seed=1"], "a new entry needs a kind"),
        (["downstream.squad.against=squat"], "against=squat: no entry has this name"),
        (["downstream.squad.against=squad"], "compared with another one itself"),
        ([TEXTS, "downstream.squad.against=texts"], "the same kind and the same data"),
        (["downstream.new={kind: squid}"], "did you mean squad"),
    ],
)
def test_what_cannot_be_composed_is_refused(overrides: Sequence[str], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        plan_of(*overrides)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_stages_that_a_user_added_are_not_overwritten(project: Path) -> None:
    definitions, path = define(validate_params(values_with())), project / "dvc.yaml"
    write_project_plan(project, definitions)
    path.write_text(path.read_text() + "  mine: {cmd: touch mine, outs: [mine]}\n")
    with pytest.raises(InputError, match=r"lacks mine"):
        write_project_plan(project, definitions)
    path.write_text("<<<<<<< HEAD\n")
    assert write_project_plan(project, definitions)


@pytest.mark.parametrize(
    "override",
    ["pretrain.enabled=false", "downstream.squad.gate.seeds=inputs/seeds", "downstream.squad.distill={layers: 1}"],
)
def test_a_stage_that_reads_less_than_before_runs_again(project: Path, override: str) -> None:
    """DVC itself compares only what dvc.yaml still names."""
    with_more, plan = project / "more", plan_of(override)
    values = [values_with(override), values_with()]
    if override == "pretrain.enabled=false":
        values.reverse()
    with_more.mkdir()
    write_plan(with_more, define(validate_params(values[0])))
    write_outs(with_more)
    before = set(yaml.safe_load((with_more / LOCK).read_text())["stages"])
    write_plan(with_more, define(validate_params(values[1])))
    remove_stale(with_more, lambda text: None)
    after = set(yaml.safe_load((with_more / LOCK).read_text())["stages"])
    changed = "gate@squad" if "seeds" in override else "finetune@squad"
    assert changed in before - after
    assert "examples@squad" in after & set(plan)


def test_a_folder_of_before_loses_what_it_held_but_not_what_entries_write_there_now(project: Path) -> None:
    (project / "predictions/squad").mkdir(parents=True)
    (project / "predictions/logits.arrow").write_text("old")
    gone = {"cmd": "", "outs": [{"path": "predictions", "hash": "md5", "md5": compute_md5(project / "predictions")}]}
    (project / LOCK).write_text(yaml.safe_dump({"schema": "2.0", "stages": {"predict": gone}}))
    remove_stale(project, lambda text: None)
    assert [path.name for path in (project / "predictions").iterdir()] == ["squad"]
