"""What a run looks at before its first stage, on real processes, servers and files; nothing is started or changed."""

import contextlib
import dataclasses
import http.server
import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.checks import device, preflight, probes
from flows.checks.input_checks import describe_dev_sets, run_check, select_checks
from flows.checks.server import check_server
from flows.runs import run_estimate
from flows.runs.locks import FOLDER
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from ipu_model.estimates.shapes import model_parameters
from ipu_model.models.config import ModelConfig
from tasks.stage.errors import InputError, ParamsError
from tests.flows.workers.worker_hosts import free_port
from tests.places import ROOT
from tests.tasks.conftest import hub_over_http  # noqa: F401 (the fixture `hub`)

HUB = ("publish.target=hub", "downstream.squad.publish.repository=user/name")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
OUTSIDE = ("PODIUM_", "PREFECT_", "HF_", "SSL_CERT", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty clone, and an environment that says nothing; its host has no device, which is not asked for then."""
    folder = tmp_path / "project"
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("inputs", "presets"):
        shutil.copytree(ROOT / name, folder / name)
    for name in [name for name in os.environ if name.lower().startswith(tuple(map(str.lower, OUTSIDE)))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PODIUM_CHECK_SECONDS", "120")  # hosts of tests are busy
    monkeypatch.setenv("PODIUM_STAGE_KINDS", "cpu")
    # Estimates of jobs have tests of their own (test_plan_command.py).
    monkeypatch.setattr(preflight, "CHECKS", [check for check in preflight.CHECKS if check is not device.check_fit])
    return folder


@pytest.fixture
def asks_device(project, monkeypatch):
    monkeypatch.delenv("PODIUM_STAGE_KINDS")


def look(project, *overrides, thorough=False, **choices):
    """The findings, by name and level, of a run with these overrides."""
    wanted = resolve_request(project, RunOptions(None, overrides, **choices), thorough=thorough)
    return {(finding.name, finding.level): finding.text for finding in preflight.run_checks(wanted)}


def refuse(project, *overrides, **choices):
    with pytest.raises((InputError, ParamsError)) as refused:
        preflight.require_runnable(resolve_request(project, RunOptions(None, overrides, **choices)))
    return refused.value


def podium(project, *words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "flows", "--project", str(project), *words], cwd=ROOT, text=True, capture_output=True,
        timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environment},
    )  # fmt: skip


def tree(folder):
    """Everything below a folder: names, sizes, times and bytes."""
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def write_config(folder, **values):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 100, **values}))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.mark.usefixtures("asks_device")
def test_every_reason_is_named_at_once_and_nothing_is_started_or_changed(project, tmp_path):
    model = write_config(tmp_path / "model", hidden_size=768)
    before = tree(project)
    overrides = [
        *HUB,
        "device.runtime=cuda",
        "base_model.source=folder",
        f"base_model.path={model}",
        "publish.base_model=user/base",
        "downstream.squad.data.source=files",
        "downstream.squad.data.train_path=nowhere.json",
    ]
    server = f"http://127.0.0.1:{free_port()}/api"
    words = [word for one in overrides for word in ("--set", one)]
    done = podium(project, "run", *words, PREFECT_API_URL=server, **NO_GPU)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 6, "and a line above the five"
    for said in ("device.runtime", "HF_TOKEN", "model.hidden_size=768", "train_path='nowhere.json'", server):
        assert said in done.stderr
    after = tree(project)
    locks = {path for path in after if path.parts[0] == "runs"} - set(before)
    folders = {Path("runs"), FOLDER, FOLDER / "cache", Path("runs/logs")}  # the server's log is removed again
    assert {path.suffix for path in locks - folders} == {".lock"}
    assert {path: what for path, what in after.items() if path not in locks} == before


@pytest.mark.usefixtures("asks_device")
def test_the_doctor_tells_programs_changes_nothing_and_never_shows_the_token(project):
    before = tree(project)
    done = podium(project, "doctor", "--json", "--set", "device.precision=fp16", HF_TOKEN="hf_very_secret")
    assert done.returncode == 2
    found = {finding["name"]: finding["level"] for finding in json.loads(done.stdout)}
    assert (found["device"], found["hub"]) == ("problem", "ok")
    assert "hf_very_secret" not in done.stdout + done.stderr
    assert tree(project) == before


def test_another_system_is_refused_and_another_processor_is_a_note(project, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert ("system", "warning") in look(project)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    error = refuse(project)
    assert isinstance(error, InputError)
    assert "Darwin on aarch64" in str(error)


@pytest.mark.parametrize(
    ("variables", "overrides", "said"),
    [
        ({"SSL_CERT_FILE": "/nowhere/ca.pem"}, (), "SSL_CERT_FILE=/nowhere/ca.pem"),
        ({"SSL_CERT_FILE": "/etc/hostname"}, (), "SSL_CERT_FILE=/etc/hostname"),
        ({"ALL_PROXY": "socks5://127.0.0.1:1"}, (), "socksio"),
        ({"HTTPS_PROXY": "ftp://127.0.0.1:1"}, (), "has the scheme 'ftp'"),
        ({"PODIUM_CHECK_SECONDS": "soon"}, (), "PODIUM_CHECK_SECONDS='soon'"),
        ({"HF_TOKEN": "hf_some", "HF_ENDPOINT": "http://127.0.0.1:9"}, HUB, "http://127.0.0.1:9 (HF_ENDPOINT)"),
        ({}, ("corpus.demo_documents=1000000000000",), "pretrain_rows.*.duplicates"),
        ({}, ("downstream.squad.publish.folder=models/squad",), "which the stage finetune@squad replaces"),
        ({}, ("downstream.squad.publish.folder=mine",), "mine exists and was not created by publish"),
        ({}, ("corpus.source=files", "corpus.path=text"), "gone.txt"),
        ({}, ("base_model.source=hub", "base_model.repository=user/none", "corpus.source=hub"), "corpus.dataset"),
        ({}, ("checkpoint.remote=file/below",), "(checkpoint.remote)"),
        ({}, ("checkpoint.remote=carrier-pigeon://x",), "carrier-pigeon"),
    ],
)
def test_a_run_that_could_not_end_well_is_refused_with_what_is_to_be_changed(
    project, tmp_path, monkeypatch, variables, overrides, said
):
    for name, value in {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api", **variables}.items():
        monkeypatch.setenv(name, value)
    for folder in ("mine", "text"):
        (project / folder).mkdir()
        (project / folder / "notes.txt").write_text("mine")
    (project / "text/gone.txt").symlink_to(tmp_path / "nowhere")
    (project / "file").write_text("")
    error = str(refuse(project, *overrides))
    assert said in error
    unasked = {"SSL_CERT_FILE", "ALL_PROXY", "HTTPS_PROXY", "PODIUM_CHECK_SECONDS"} & set(variables)
    assert ("PREFECT_API_URL" in error) != bool(unasked), "no one is asked over a network that cannot be used"


def test_room_that_may_not_suffice_is_a_note_and_refuses_nothing(project, monkeypatch, capsys):
    assert ("disk", "ok") in look(project)
    wanted = resolve_request(project, RunOptions())
    needed = run_estimate.estimate_model_bytes(wanted) + run_estimate.estimate_data_bytes(wanted)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=0.6 * needed))
    preflight.require_runnable(wanted)
    assert capsys.readouterr().err.startswith("note: disk: ")


def test_a_mount_that_takes_no_writing_is_called_so(project, monkeypatch):
    real = os.statvfs(project)
    fields = {name: getattr(real, name) for name in dir(real) if name.startswith("f_")}
    mounted = SimpleNamespace(**fields | {"f_flag": real.f_flag | os.ST_RDONLY})
    monkeypatch.setattr(os, "statvfs", lambda _: mounted)
    assert f"{project} is on a read-only file system" in str(refuse(project))


def test_the_estimate_of_the_disk_grows_with_text_maskings_and_parameters(project):
    def of(*overrides):
        wanted = resolve_request(project, RunOptions(None, overrides))
        return run_estimate.estimate_data_bytes(wanted), run_estimate.estimate_model_bytes(wanted)

    data, models = of()
    assert of("corpus.demo_documents=40000")[0] == pytest.approx(2 * data)
    assert of("pretrain_rows.phase1.duplicates=3")[0] > data
    assert of("model.num_layers=4")[1] > models
    (project / "text.txt").write_bytes(b"word " * 1000)
    (project / "long.txt").write_bytes(b"word " * 3000)
    short, long = (of("corpus.source=files", f"corpus.path={project / name}.txt")[0] for name in ("text", "long"))
    assert long == pytest.approx(3 * short)


def test_parameters_are_counted_as_bert_base_has_them(project):
    model = ModelConfig(30522, **resolve_request(project, RunOptions("cpu-base-paddle")).params.model.model_dump())
    assert model_parameters(model, "pretraining") == 110_106_428  # BertForPreTraining of bert-base-uncased


OURS = f'exec {sys.executable} "$@"'


@pytest.mark.usefixtures("asks_device")
@pytest.mark.parametrize(
    ("script", "variables", "finding", "said"),
    [
        (None, {}, ("device", "problem"), "/python does not answer the device check"),
        (f'exec {sys.executable} -S "$@"', {}, ("device", "problem"), "lacks numpy, pyarrow, safetensors, torch"),
        ("echo no such thing; exit 3", {}, ("device", "problem"), "exit code 3 (no such thing)"),
        ("exec sleep 60", {"PODIUM_CHECK_SECONDS": "0.5"}, ("device", "warning"), "no answer within 0.5 s"),
        (OURS, {"CUDA_VISIBLE_DEVICES": ""}, ("device", "ok"), "cpu (auto: no poptorch in this Python"),
        (OURS, {"PODIUM_DEVICE_LAUNCHER": "nowhere-run -n 2"}, ("launcher", "problem"), "nowhere-run is not on PATH"),
        (OURS, {"PODIUM_DEVICE_LAUNCHER": "nowhere-run '"}, ("launcher", "problem"), "cannot be parsed"),
    ],
)
def test_the_python_and_the_launcher_of_device_jobs_are_asked(
    project, monkeypatch, tmp_path, script, variables, finding, said
):
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    for name, value in {"PODIUM_DEVICE_PYTHON": str(python), **variables}.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    assert said in look(project, "device.runtime=auto", thorough=True)[finding]
    assert time.monotonic() - began < 50, "none sleeps for 60"


@pytest.mark.usefixtures("asks_device")
def test_a_recipe_of_more_ipus_than_there_are_is_refused_before_the_first_stage(project, monkeypatch):
    """16 = 4 IPUs x 4 replicas of pre-training; fine-tuning has fewer."""
    monkeypatch.setenv("PODIUM_DEVICE_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "doubles" / "poptorch_double"))
    monkeypatch.setenv("PODIUM_DOUBLE_IPUS", "4")

    wanted = resolve_request(project, RunOptions("ipu-base-pod16-examples"), thorough=True)
    said = {(one.name, one.level): one.text for one in preflight.run_checks(wanted)}["device", "problem"]
    assert "the job needs 16 IPUs" in said
    assert "this host has 4" in said


def test_a_device_is_not_asked_for_where_no_stage_that_needs_it_would_run(toy_project, monkeypatch):
    """The toy stages stand for a training that was done; it depends on its code alone, and not on the device."""
    monkeypatch.setenv("PODIUM_DEVICE_PYTHON", "/nowhere/python")
    monkeypatch.setenv("PODIUM_CHECK_SECONDS", "120")
    plan = (toy_project / "dvc.yaml").read_text()
    (toy_project / "dvc.yaml").write_text(plan.replace("stage.py first", "stage.py first\n    meta: {host: device}"))
    assert ("device", "problem") in look(toy_project)
    subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=toy_project, check=True, capture_output=True)
    assert ("device", "problem") not in look(toy_project)
    (toy_project / "stage.py").write_text((toy_project / "stage.py").read_text() + "\n")
    assert ("device", "problem") in look(toy_project), "its code changed"


def test_a_host_that_only_restores_is_not_asked_for_a_device(project):
    assert ("device", "problem") not in look(project, "device.runtime=cuda")


def squad(**changes):
    answers = [{"text": "Rome", "answer_start": 0, **changes}]
    asked = {"context": "Rome is old.", "qas": [{"id": "1", "question": "What is old?", "answers": answers}]}
    return {"data": [{"paragraphs": [asked]}]}


def files(tmp_path, **named):
    keys = {
        "corpus": ("corpus.source=files", "corpus.path"),
        "train": ("downstream.squad.data.source=files", "downstream.squad.data.train_path"),
        "dev": ("downstream.squad.data.source=files", "downstream.squad.data.dev_path"),
        "vocab": ("tokenizer.source=file", "tokenizer.path"),
    }
    return [word for key, name in named.items() for word in (keys[key][0], f"{keys[key][1]}={tmp_path / name}")]


def test_columns_endings_and_broken_files_are_found_before_the_first_stage(project, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.jsonl").write_text('{"body": "words"}\n')
    (tmp_path / "train.json").write_text(json.dumps(squad(answer_start=40)))
    (tmp_path / "dev.json").write_text("{")
    (tmp_path / "vocab.txt").write_text("[UNK]\n")
    given = files(tmp_path, corpus="text", train="train.json", dev="dev.json", vocab="vocab.txt")
    found = look(project, *given, "pretrain_rows.source=corpus", "downstream.glue-sst2={kind: glue, task: sst2}")
    assert "has no column 'text'; its columns are body" in found["corpus", "problem"]
    assert "answer_start" in found["squad", "problem"]
    assert "lacks [PAD]" in found["vocabulary", "problem"]
    assert "downstream.glue-sst2.data.path" in found["glue-sst2", "problem"]


TAGGED = [f"Rome{n} B-LOC\nsleeps O\n" for n in range(40)]


@pytest.mark.parametrize(
    ("kind", "lines", "again", "reason"),
    [
        ("classification", ["text,label", *(f"text {n},good" for n in range(40))], False, "1 class(es) (good)"),
        ("ner", [f"word{n} O\nsleeps O\n" for n in range(40)], False, "have 0 entity types"),
        ("ner", TAGGED, True, "own: 40 of 40 development sentences are also training sentences"),
        ("classification", ["text,label", *(f"text {n},{n % 2}" for n in range(40))], True, "40 of 40 development"),
        ("pairs", ["anchor,positive", *(f"q {n},text {n}" for n in range(40))], True, "max_common_share=1"),
    ],
)
def test_files_of_which_nothing_can_be_learned_or_measured_are_refused_before_an_estimate(
    project, tmp_path, capsys, kind, lines, again, reason
):
    train = tmp_path / f"train.{'conll' if kind == 'ner' else 'csv'}"
    train.write_text("\n".join(lines))
    dev = f"dev_path: {train}" if again else "dev_path: null, dev_fraction: 0.5"
    data = f"data: {{source: files, train_path: {train}, {dev}}}"
    assert reason in str(refuse(project, f"downstream.own={{kind: {kind}, {data}}}", "downstream.squad=null"))
    assert capsys.readouterr().out == ""


def test_good_files_are_said_with_what_was_looked_at(project, tmp_path):
    (tmp_path / "text.txt").write_text("one\n\n" * 10)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.json").write_text(json.dumps(squad()))
    found = look(project, *files(tmp_path, corpus="text.txt", train="train.json", dev="dev.json"))
    assert not [name for name, level in found if level != "ok"]
    assert str(tmp_path / "dev.json") in found["squad", "ok"]


def test_a_text_of_too_few_documents_is_refused_before_the_run(project, tmp_path):
    (tmp_path / "text.txt").write_text("One line. It has two sentences.\n" * 30)
    text = files(tmp_path, corpus="text.txt")
    assert "has 1 document; at least 10 are required" in look(project, *text)["corpus", "problem"]
    assert ("corpus", "problem") not in look(project, *text, "corpus.layout=lines")
    assert ("corpus", "problem") not in look(project, *text, "validate.min_documents=1")


def test_the_power_of_the_development_set_is_said_before_the_first_stage(project, tmp_path):
    """The best constant answer with its share, and nothing where the file says too little."""
    texts, words, questions = (tmp_path / name for name in ("texts.csv", "words.conll", "questions.json"))
    lines = [f"text {n},{'bad' if n % 4 else 'good'}" for n in range(300)]
    texts.write_text("\n".join(["text,label", *lines]))
    words.write_text("".join(f"Rome{n} B-LOC\nis O\n\n" for n in range(40)))
    questions.write_text(json.dumps(squad()))
    both = "train_path: {0}, dev_path: {0}, max_common_share: 1"
    data = {
        "own": f"{{kind: classification, data: {{{both.format(texts)}}}}}",
        "part": f"{{kind: classification, data: {{train_path: {texts}, dev_path: null, dev_fraction: 0.2}}}}",
        "few": f"{{kind: classification, data: {{{both.format(texts)}, limit_dev: 100}}}}",
        "value": f"{{kind: classification, multilabel: true, data: {{{both.format(texts)}}}}}",
        "names": f"{{kind: ner, data: {{{both.format(words)}}}}}",
        "asked": f"{{kind: squad, data: {{source: files, {both.format(questions)}}}}}",
    }
    overrides = ("downstream.squad=null", *(f"downstream.{k}={v}" for k, v in data.items()))
    request = resolve_request(project, RunOptions(None, overrides))
    said = {line.partition(":")[0]: line for line in describe_dev_sets(request.params)}
    assert said.keys() == data.keys() - {"value"}
    assert re.findall(r"[\d.]+", said["own"]) == ["300", "4.0", "75.0", "5.7"]
    sizes = {name: re.search(r"With (\d+) development", line)[1] for name, line in said.items()}
    assert sizes == {"own": "300", "part": "60", "few": "100", "names": "40", "asked": "1"}
    assert "must reach about 11.0 points" in said["names"]
    own = next(one for one in select_checks(request.params, [str(texts)]) if one.name == "own")
    found = {one.text for one in run_check(own, request.params)}
    assert said["own"] in found
    assert any("300 of 300" in text for text in found), "they are training examples as well"


def test_files_that_take_too_long_are_left_to_their_stages(project, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("words")
    monkeypatch.setenv("PODIUM_CHECK_SECONDS", "0.01")
    assert "no answer within 0.01 s" in look(project, *files(tmp_path, corpus="text.txt"))["files", "warning"]


def test_a_base_model_is_held_against_the_parameters_and_a_given_vocabulary(project, tmp_path):
    model = write_config(tmp_path / "model", **SIZES)
    given = ("base_model.source=folder", f"base_model.path={model}")
    assert ("base model", "ok") in look(project, *given)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    vocabulary = ("tokenizer.source=file", f"tokenizer.path={tmp_path / 'vocab.txt'}")
    assert "has 100 word embeddings, but the tokenizer has 6 entries" in str(refuse(project, *given, *vocabulary))
    (model / "model.safetensors").unlink()
    assert "has no weights" in str(refuse(project, *given))
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    assert "vocab_size and hidden_size not found" in str(refuse(project, *given))


def test_a_token_is_asked_for_its_rights_and_nothing_is_made_on_the_hub(project, hub, monkeypatch):
    assert look(project, *HUB)["hub", "ok"] == f"user may publish to user/name at {hub.endpoint}"
    monkeypatch.setenv("HF_TOKEN", hub.add_user("hf_reads", role="read"))
    error = refuse(project, *HUB)
    assert isinstance(error, InputError)
    assert "HF_TOKEN (of user) may only read" in str(error)
    assert ("hub", "problem") not in look(project, *HUB, publish=False)
    assert {method for method, _, _ in hub.requests} == {"GET"}


def test_a_key_that_cannot_sign_is_found_before_the_first_stage_and_its_place_is_not_said(
    project, monkeypatch, tmp_path
):
    monkeypatch.setattr("tasks.release.signing.require_package", lambda error: None)
    monkeypatch.setenv("PODIUM_SIGNING_KEY", str(tmp_path / "secret-place.pem"))
    error = str(refuse(project, "publish.signing=key"))
    assert "PODIUM_SIGNING_KEY" in error
    assert "secret-place" not in error
    assert ("signing", "problem") not in look(project, "publish.signing=key", publish=False)


def test_what_is_to_be_read_from_the_hub_must_be_there_and_a_folder_of_this_host_is_not_asked_for(
    project, hub, tmp_path
):
    base = ("base_model.source=hub", "base_model.repository=user/none")
    found = look(project, *base, "corpus.source=hub", "corpus.dataset=user/nothing")
    assert found["hub input", "problem"].startswith("base_model.repository=user/none")
    for place, stated in (("tokenizer.repository", "tokenizer.source=hub"), ("corpus.dataset", "corpus.source=hub")):
        for value, asked in ((tmp_path, []), ("user/name", ["user/name"])):
            wanted = resolve_request(project, RunOptions(None, (stated, f"{place}={value}")))
            questions = preflight.probe_hub(wanted)
            assert [one["name"] for question in questions for one in question.request["sources"]] == asked


def test_workers_need_a_server_and_bring_their_own_token_and_device(project, monkeypatch):
    error = refuse(project, *HUB, "device.runtime=cuda", on_workers=True)
    assert str(error).startswith("nothing was started. server: ")


def test_the_remote_is_looked_at(project, tmp_path):
    config = "[core]\n    no_scm = true\n    remote = far\n['remote \"far\"']\n    url = {}\n"
    (project / ".dvc" / "config").write_text(config.format("oss://bucket/path"))
    assert "pip install dvc-oss" in str(refuse(project))
    (project / ".dvc" / "config").write_text(config.format("../../store"))
    assert look(project)["remote", "ok"] == f"the DVC remote far: {tmp_path / 'store'} (will be created)"


def test_what_a_program_said_before_its_time_was_over_counts(tmp_path):
    said = {"name": "first", "level": "ok", "text": "seen"}
    code = f"import time; print('a library warns'); print({json.dumps(said)!r}, flush=True); time.sleep(600)"
    (tmp_path / "slow_check.py").write_text(code)
    with probes.start_probes([probes.Probe("slow", "slow_check", {}, 2.0)], tmp_path) as wait:
        first, second = wait()
    assert dataclasses.asdict(first).items() >= said.items()
    assert (second.level, "no answer within 2 s" in second.text) == ("warning", True)


def test_nothing_outlives_a_check_that_is_interrupted(tmp_path):
    (tmp_path / "sleeper.py").write_text("import time; time.sleep(60)")
    asked = probes.Probe("slow", "sleeper", {}, 60.0)
    with contextlib.suppress(KeyboardInterrupt), probes.start_probes([asked], tmp_path):
        [process] = [one for one in psutil.Process().children() if "sleeper" in one.cmdline()]
        raise KeyboardInterrupt
    assert not process.is_running()


UNSTATED = ("publish.license=null", "publish.language=null")
CARD = "---\nlicense: mit\nlanguage: en\n---\n"
ADD = "--set publish.license=apache-2.0 --set publish.language=en"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("card", "overrides", "choices", "said"),
    [
        (None, (), {}, ADD),
        (None, (), {"on_workers": True}, ADD),
        (None, ("base_model.path=/on/the/worker",), {"on_workers": True}, ""),
        (None, (), {"publish": False}, ""),
        (None, ("publish.target=local",), {}, ""),
        ("---\nlicense: mit\n---\n", (), {}, "the language of the model"),
        ("---\nlicense: mit\n---\n", ("publish.language=am",), {}, ""),
        (CARD, (), {}, ""),
    ],
)
def test_a_release_on_the_hub_needs_a_licence_and_a_language_unless_the_card_of_the_given_model_has_them(
    project, hub, tmp_path, card, overrides, choices, said
):
    folder = write_config(tmp_path / "model", **SIZES)
    if card is not None:
        (folder / "README.md").write_text(card)
    given = (*HUB, *UNSTATED, "base_model.source=folder", f"base_model.path={folder}", *overrides)
    found = look(project, *given, **choices)
    assert (("hub", "problem") in found) == bool(said)
    assert said in found.get(("hub", "problem"), "")
    if card == CARD:
        assert "publish.base_model" in found["hub", "warning"]
        assert ("hub", "warning") not in look(project, *given, "publish.base_model=user/base")


@pytest.mark.parametrize("card", [None, CARD])
def test_the_card_of_a_model_on_the_hub_answers(project, hub, card):
    model = hub.store.create("model", "user/model")
    hub.store.add_files(model, {"config.json": b"{}"} | ({} if card is None else {"README.md": card.encode()}))
    given = (*HUB, *UNSTATED, "base_model.source=hub", "base_model.repository=user/model")
    if card is not None:
        assert ("hub", "problem") not in look(project, *given)
        return
    assert ADD in str(refuse(project, *given))
    found = look(project, *given, "base_model.repository=user/none")
    assert ("hub", "problem") not in found, "said once, as an input"
    assert ("hub input", "problem") in found


@pytest.mark.soak
@pytest.mark.usefixtures("asks_device")
def test_a_run_that_cannot_fit_into_memory_is_refused_and_leaves_nothing(project):
    """A process may have 200 MB of data: Python and what a plan loads, and not torch with the demo's model."""
    before, limit = tree(project), 200 << 20
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2); "
    code += "from flows import cli; cli.main(sys.argv[2:])"
    words = [sys.executable, "-c", code, str(limit), "--project", str(project), "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PODIUM_LEDGER": ""}
    done = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, timeout=300, env=environment)
    assert done.returncode == 1, done.stderr
    for job in ("pretrain@phase1", "pretrain@phase2", "finetune@squad", "predict@squad"):
        assert f"{job} does not fit: the process needs " in done.stderr
    assert "podium run --force" in done.stderr
    kept = {path: seen for path, seen in tree(project).items() if path.parts[0] != "runs"}
    assert kept == before, "but for the lock of the run"


@contextlib.contextmanager
def serving(handler, certificate=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}/api"
    finally:
        server.shutdown()
        server.server_close()


class Answers(http.server.BaseHTTPRequestHandler):
    status, body = 200, b'"3.8.8"'

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("status", "body", "said", "required"),
    [
        (404, b"{}", "answers 404", None),
        (200, b"<html>", "is not a Prefect API", None),
        (401, b"{}", "PREFECT_API_AUTH_STRING", None),
        (200, b'"3.4.0"', r"is 3\.4\.0; .* require Prefect 3\.8 or newer", True),
        (200, b'"3.8.0"', "Prefect 3.8.0 at ", False),
        (200, b'"3.10.1"', "Prefect 3.10.1 at ", False),
    ],
)
def test_a_server_that_is_none_or_older_than_the_client_is_refused_before_anything_is_created_there(
    status, body, said, required
):
    with (
        serving(type("Server", (Answers,), {"status": status, "body": body})) as url,
        temporary_settings({PREFECT_API_URL: url}),
    ):
        strict, plain = (check_server(required=one) for one in (True, False))
    assert re.search(said, strict.text)
    assert (strict.level == "ok", plain.level == "ok") == (required is False, required is not None)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_that_nobody_signed_is_said(tmp_path):
    both = tmp_path / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", both, "-out", tmp_path / "crt.pem",
         "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(both.read_bytes() + (tmp_path / "crt.pem").read_bytes())
    command = [sys.executable, "-m", "flows.checks.server"]
    with serving(Answers, both) as url:
        for trusted, level in (({}, "problem"), ({"SSL_CERT_FILE": str(tmp_path / "crt.pem")}, "ok")):
            env = {**os.environ, "PREFECT_API_URL": url, **trusted}
            found = subprocess.run(command, input='{"required": false}', env=env, text=True, capture_output=True)
            assert json.loads(found.stdout)["level"] == level, found.stdout + found.stderr
            assert ("certificate" in found.stdout.lower()) == (level == "problem")
