"""`podium plan`: figures of the device jobs of every recipe at once, without torch; what does not fit is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows import cli
from flows.checks import device, preflight
from flows.runs.run_estimate import estimate_run
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from flows.views import plan_page
from ipu_model.estimates.estimate import FITS, TIGHT
from ipu_model.models.families import configure_model, get_family
from tasks.estimates.job_estimates import DOES_NOT_FIT, EstimateOptions
from tasks.params.overlays import list_preset_names
from tasks.stage.errors import InputError, ParamsError
from tests.flows.toy_runs import podium
from tests.places import ROOT, copy_project
from tests.tasks.hostile import without_own_script
from tests.tasks.tiny_model import write_tiny_model

MARKUP = "<img src=x onerror=alert(1)>"
SECONDS = 30.0
"""Of CPU time: a search that tries every layout takes hours. A plan takes one or two."""
NEVER = """
import sys
from flows.cli import main
from flows.runs.run_request import RunRequest, resolve_request
try:
    main(sys.argv[1:])
finally:
    assert not {'torch', 'prefect', 'dvc', 'transformers'} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return copy_project(tmp_path_factory.mktemp("plan") / "project")


@pytest.fixture(autouse=True)
def in_project(project, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setattr(cli, "SELF", project)  # else commands start again with the code of the copy


def plan(*words):
    done = CliRunner().invoke(cli.cli, ["plan", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def wanted(preset=None, *overrides, **choices):
    return resolve_request(Path.cwd(), RunOptions(preset, overrides, name="of-a-test", **choices))


def findings(*asked, **choices):
    """What is said of the jobs of a run of this preset with these overrides: levels and texts."""
    return [(finding.level, finding.text) for finding in device.check_fit(wanted(*asked, **choices))]


def problems(*asked, **choices):
    return [text for level, text in findings(*asked, **choices) if level == "problem"]


PRESETS = list_preset_names(ROOT / "presets")
POD16 = "ipu-base-pod16-examples"
LARGE = "pretrain.phase1.micro_batch_size=512"


@pytest.mark.parametrize(
    "preset", [*PRESETS[::2], *(pytest.param(preset, marks=pytest.mark.soak) for preset in PRESETS[1::2])]
)
def test_every_recipe_has_figures_of_all_its_device_jobs_at_once(preset):
    began = time.process_time()
    run = estimate_run(wanted(preset))
    assert time.process_time() - began < SECONDS
    starting = [stage.stage for stage in run.stages if stage.stage.split("@")[0] in ("pretrain", "finetune", "predict")]
    assert [job.planned.stage for job in run.jobs] == starting
    assert [job.problem for job in run.jobs if job.estimate is None] == []
    assert [job.name for job in run.jobs if job.verdict == DOES_NOT_FIT and job.runtime == "ipu"] == []
    for job in run.jobs:
        assert job.estimate.memory[0].total.low > 0
        assert (job.time is not None) == (job.runtime == "ipu"), "of others a measurement tells, or the ledger"
    json.dumps(run.as_values(), allow_nan=False)


def test_the_page_of_the_documents_shows_what_is_said():
    page = (ROOT / "docs/plan.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^podium plan (.*) --page plan.html$", page, re.MULTILINE)
    output = plan(*command.split())
    for part in re.findall(r"```text\n(about.*?)```", page, re.DOTALL)[0].split("...\n"):
        assert part in output


def test_a_plan_of_a_pod_for_programs_and_without_torch():
    command = [sys.executable, "-c", NEVER, "plan", "--preset", POD16, "--price", "10", "--json"]
    values = json.loads(subprocess.run(command, text=True, capture_output=True, timeout=120, check=True).stdout)
    assert {"stages", "jobs", "total"} == set(values)
    [first, *_] = values["jobs"]
    assert (first["name"], first["runs"], first["kind"]) == ("pretrain@phase1", True, "pretrain")
    assert first["time"]["updates"] == 7038
    assert first["cost"]["likely"] == pytest.approx(first["time"]["seconds"]["likely"] / 360)
    seconds = [job["time"]["seconds"]["likely"] for job in values["jobs"]]
    assert values["total"]["device_seconds"]["likely"] == pytest.approx(sum(seconds))


def test_what_does_not_fit_is_refused_with_its_largest_part_unless_forced():
    [refused] = problems(POD16, LARGE)
    assert re.search(r"pretrain@phase1 does not fit: IPU \d of 4 needs .*largest part is", refused)
    assert not problems(POD16, LARGE, force=True)
    with pytest.raises(InputError, match="(?s)nothing was started.*does not fit"):
        preflight.require_runnable(wanted(POD16, LARGE))
    lines = []
    with pytest.raises(ParamsError, match="pretrain@phase1 does not fit"):
        device.require_fit(wanted(POD16, LARGE), lines.append)
    assert len(lines) == 4, "a line a job"
    device.require_fit(wanted(POD16, LARGE, force=True), lines.append)
    done = CliRunner().invoke(cli.cli, ["plan", "--preset", POD16, "--set", LARGE], catch_exceptions=False)
    assert (done.exit_code, "podium run" in done.stderr, "change the parameter" in done.stderr) == (0, False, True)


def test_a_host_that_is_too_small_refuses_and_a_worker_is_not_judged_by_this_host(monkeypatch):
    monkeypatch.setattr("ipu_model.estimates.host.memory_limit", lambda others: 100 << 20)
    assert [level for level, _ in findings()] == ["problem"] * 4
    assert [level for level, _ in findings(on_workers=True)] == ["ok"] * 4


@pytest.mark.parametrize(("limit", "verdict"), [(4e9, DOES_NOT_FIT), (8e9, TIGHT), (1e12, FITS), (None, "")])
def test_the_memory_of_another_host_can_be_stated(limit, verdict):
    [job, *_] = estimate_run(wanted("cuda-large-optimum"), options=EstimateOptions(limit=limit)).jobs
    assert job.verdict == verdict


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (("model.family=modernbert", "model.hidden_size=66", "model.num_heads=2"), "modernbert need an even number"),
        (("pretrain.phase2.global_rope_theta=160000",), "needs a model with rotary positions"),
    ],
)
def test_what_no_model_can_compute_is_refused_by_the_plan_as_by_the_run(changes, why):
    with pytest.raises(ParamsError, match=why):
        plan(*(word for change in ("pretrain_rows.next_sentence=false", *changes) for word in ("--set", change)))


def test_a_page_holds_the_pictures_and_no_markup_of_a_user(tmp_path):
    page = tmp_path / "plan.html"
    plan("--preset", "ipu-large-pod16-examples-8ipu", "--page", str(page))
    text = without_own_script(page.read_text(encoding="utf-8"))
    assert ("<svg" in text, "IPU 7" in text) == (True, True)
    assert not re.search(r"<script|https?://|url\(", text)
    hostile = wanted("bert", "device.runtime=ipu", f'ipu.phase1.layers_per_ipu="{MARKUP}"')
    shown = plan_page.render_plan(estimate_run(hostile), hostile, ROOT, MARKUP)
    assert MARKUP not in shown
    assert shown.count("&lt;img src=x") == 2, "the command, and the problem of the job"


@pytest.mark.parametrize(
    ("override", "job", "reason"),
    [
        ("ipu.phase1={layers_per_ipu: [4, 4, 4]}", "pretrain@phase1", "ipus_per_replica=3 is not a power of two"),
        ("ipu.phase2.replication_factor=3", "pretrain@phase2", "= 12 IPUs is not a power of two"),
        ("downstream.squad.finetune.global_batch_size=16", "finetune@squad", "cannot fill the pipeline"),
        ("pretrain.phase1.global_batch_size=65000", "pretrain@phase1", "cannot be cut into micro-batches"),
        ("ipu.phase2.replication_factor=32", "pretrain@phase2", "a process attaches at most 64"),
        ("pretrain.max_grad_norm=1.0", "pretrain@phase1", "max_grad_norm"),
    ],
)
def test_a_job_that_cannot_run_is_refused_though_forced_and_no_run_is_proposed(capsys, override, job, reason):
    checked = device.check_fit(wanted(POD16, override, force=True))
    [refused, *_] = [finding for finding in checked if finding.level == "problem"]
    assert (refused.of_parameters, reason in refused.text) == (True, True), "exit code 2"
    # The launcher of a worker may start as many instances as share the replicas.
    assert bool(problems(POD16, override, on_workers=True)) == ("replication_factor" not in override)
    with pytest.raises(ParamsError, match=re.escape(reason)):
        device.require_fit(wanted(POD16, override), lambda text: None)
    code, printed = podium(capsys, "plan", "--preset", POD16, "--set", override, *["--json"] * (job[-1] == "2"))
    assert (code, f"next: {job}" in printed.err) == (2, True), printed.err
    assert "podium run" not in printed.err + printed.out


def test_a_fine_tuning_is_measured_and_planned_instead_of_run(tmp_path, project, capsys, monkeypatch):
    monkeypatch.setenv("PODIUM_CHECK_SECONDS", "120")  # hosts of tests are busy
    model, reviews = write_tiny_model(tmp_path / "my-bert", ("fine", "dull")), tmp_path / "reviews.csv"
    reviews.write_text("text,label\n" + "fine film,1\ndull film,0\n" * 20)
    words = ("finetune", "classification", "--model", str(model), "--train", str(reviews), "--plan")
    code, printed = podium(capsys, *words)
    assert (code, printed.err.endswith("next: the same command without --plan\n")) == (0, True), printed.err
    assert re.search(r"(?m)^about [\d.]+ \w+, .* of memory, 8 stages not timed$", printed.out)
    assert "reviews.csv: CSV, UTF-8" in printed.out
    assert re.search(r"(?m)^classification: With \d+ development examples", printed.out)
    code, printed = podium(capsys, *words, "--column", "label=stars")
    assert (code, printed.out, "'stars'" in printed.err) == (1, "", True)
    assert not (project / "runs/checkouts").exists()


@pytest.mark.parametrize(("size", "levels"), [(64, ["problem"]), (100, ["warning"]), (200, [])])
def test_what_only_assumed_rows_speak_against_is_a_warning(size, levels):
    """2.2 packed sequences in a row are assumed: 32 rows hold 71 of them, and 3 micro-batches fill the pipeline."""
    asked = findings("ipu-base-pod16-run-qa-fast", f"downstream.squad.finetune.global_batch_size={size}")
    assert [level for level, text in asked if "cannot fill the pipeline" in text] == levels


IPU = "downstream.squad.ipu.finetune"
FACTOR = f"{IPU}.embedding_serialization_factor"
QUESTIONS = "ipu-base-pod16-run-qa"
VOCABULARY = ("tokenizer.source=file", "tokenizer.path=known/vocab.txt")
KNOWN_MODEL = ("base_model.source=folder", "base_model.path=known")


@pytest.mark.parametrize(
    ("preset", "overrides", "reason", "level"),
    [
        (QUESTIONS, (f"{IPU}.auto_loss_scaling=true", "device.precision=fp32"), "accumulator_precision", "problem"),
        (QUESTIONS, (f"{FACTOR}=4", *VOCABULARY), "30522 / 4 leaves 2", "warning"),
        (QUESTIONS, (f"{FACTOR}=3", *KNOWN_MODEL), "30526 / 3", "problem"),
        (QUESTIONS, (f"{FACTOR}=2", *KNOWN_MODEL), "", None),
        (POD16, (f"{FACTOR}=4", *VOCABULARY), "30522 / 4 leaves 2", "problem"),
        (POD16, (f"{FACTOR}=4", "tokenizer.source=train"), "30522 / 4 leaves 2", "warning"),
    ],
)
def test_what_only_a_compiler_would_refuse_is_refused_before_the_first_stage_where_it_is_certain(
    project, capsys, preset, overrides, reason, level
):
    """The word table of a base model may have more rows than its tokenizer has entries."""
    known = project / "known"
    known.mkdir(exist_ok=True)
    (known / "vocab.txt").write_text("".join(f"word{number}\n" for number in range(30522)))
    (known / "config.json").write_text(json.dumps(get_family("bert").write_values(configure_model(30526, "bert"))))
    jobs = [(found, text) for found, text in findings(preset, *overrides) if text.startswith("finetune@squad: ")]
    assert [found for found, _ in jobs if found != "ok"] == ([level] if level else [])
    assert reason in jobs[0][1]
    code, _ = podium(capsys, "plan", "--preset", preset, *(word for text in overrides for word in ("--set", text)))
    assert code == (2 if level == "problem" else 0)


POPRUN = ("device.launcher=poprun", "device.processes=2")
PHASE1 = "ipu.phase1.replication_factor"
EVALUATES = (
    *POPRUN,
    "downstream.squad.rows.held_out_fraction=0.1",
    "downstream.squad.finetune.evaluate_every_updates=10",
)


@pytest.mark.parametrize(
    ("words", "overrides", "job", "reason", "level"),
    [
        (None, (*POPRUN, f"{PHASE1}=32"), "pretrain@phase1", "", None),
        ("poprun --num-instances=2 --num-replicas 4 --ipus-per-replica 4", (), "pretrain@phase1", "", None),
        ("own-poprun.sh", (f"{PHASE1}=32",), "pretrain@phase1", "at most 64", "warning"),
        (None, ("device.launcher=poprun", "device.processes=3"), "pretrain@phase1", "processes=3", "problem"),
        ("poprun --num-instances 3", (), "pretrain@phase1", "shared by 3 instances", "problem"),
        ("poprun --num-instances 2", (f"{PHASE1}=12",), "pretrain@phase1", "each of 2 instances = 24", "problem"),
        ("poprun --num-instances 2 --num-replicas 8", (), "pretrain@phase1", "--num-replicas 8", "problem"),
        ("poprun --num-instances 2 --ipus-per-replica 2", (), "pretrain@phase1", "--ipus-per-replica 2", "problem"),
        ("poprun --num-instances two", (), "pretrain@phase1", "a positive integer", "problem"),
        (None, (*EVALUATES, f"{IPU}.inference_layers_per_ipu=[6, 6]"), "finetune@squad", "2 instances", "problem"),
        (None, (*EVALUATES, f"{IPU}.inference_layers_per_ipu=[3, 3, 3, 3]"), "finetune@squad", "", None),
    ],
)
def test_instances_of_poprun_share_the_replicas_in_a_plan_as_in_the_job(
    monkeypatch, words, overrides, job, reason, level
):
    monkeypatch.delenv("PODIUM_DEVICE_LAUNCHER", raising=False)
    if words is not None:
        monkeypatch.setenv("PODIUM_DEVICE_LAUNCHER", words)
    jobs = [(found, reason in text) for found, text in findings(POD16, *overrides) if text.startswith(job)]
    assert [found for found in jobs if found[0] != "ok"] == ([(level, True)] if level else [])
