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
from tests.places import ROOT, SETTINGS, copy_project
from tests.tasks.conftest import hub_over_http  # noqa: F401 (the fixture `hub`)

HUB = ("publish.target=hub", "downstream.squad.publish.repository=user/name")
OUTSIDE = ("podium_", "prefect_", "hf_", "ssl_cert", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty clone, and an environment that says nothing; its host has no device, which is not asked for then."""
    folder = copy_project(tmp_path / "project", SETTINGS)
    (folder / ".dvc").mkdir()
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    for name in [name for name in os.environ if name.lower().startswith(OUTSIDE)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PODIUM_CHECK_SECONDS", "120")  # hosts of tests are busy
    monkeypatch.setenv("PODIUM_STAGE_KINDS", "cpu")
    # Estimates of jobs have tests of their own (test_plan_command.py).
    monkeypatch.setattr(preflight, "CHECKS", [check for check in preflight.CHECKS if check is not device.check_fit])
    return folder


def look(project, *overrides, preset=None, thorough=False, **choices):
    """The findings, by name and level, of a run with these overrides."""
    request = resolve_request(project, RunOptions(preset, overrides, **choices), thorough=thorough)
    return {(finding.name, finding.level): finding.text for finding in preflight.run_checks(request)}


def refuse(project, *overrides, **choices):
    with pytest.raises((InputError, ParamsError)) as refused:
        preflight.require_runnable(resolve_request(project, RunOptions(None, overrides, **choices)))
    return str(refused.value)


def podium(project, *words, **environment):
    command = [sys.executable, "-m", "flows", "--project", str(project), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environment}
    del environment["PODIUM_STAGE_KINDS"]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=120, env=environment)


def tree(folder):
    """Everything below a folder: names, sizes, times and bytes."""
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def write_model(folder, **values):
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    sizes |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 100, **sizes, **values}))
    (folder / "model.safetensors").write_bytes(b"")
    return "base_model.source=folder", f"base_model.path={folder}"


def test_every_reason_is_named_at_once_and_nothing_is_started_or_changed(project, tmp_path):
    before = tree(project)
    server = f"http://127.0.0.1:{free_port()}/api"
    data = ("downstream.squad.data.source=files", "downstream.squad.data.train_path=nowhere.json")
    model = write_model(tmp_path / "model", hidden_size=768)
    overrides = (*HUB, "device.runtime=cuda", *model, "publish.base_model=user/base", *data)
    words = [word for override in overrides for word in ("--set", override)]
    done = podium(project, "run", *words, PREFECT_API_URL=server, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 6, "and a line above the five"
    for reason in ("device.runtime", "HF_TOKEN", "model.hidden_size=768", "train_path='nowhere.json'", server):
        assert reason in done.stderr
    after = tree(project)
    locks = {path for path in after if path.parts[0] == "runs"} - set(before)
    folders = {Path("runs"), FOLDER, FOLDER / "cache", Path("runs/logs")}  # the server's log is removed again
    assert {path.suffix for path in locks - folders} == {".lock"}
    assert {path: content for path, content in after.items() if path not in locks} == before


def test_the_doctor_tells_programs_changes_nothing_and_never_shows_the_token(project):
    before = tree(project)
    done = podium(project, "doctor", "--json", "--set", "device.precision=fp16", HF_TOKEN="hf_very_secret")
    levels = {finding["name"]: finding["level"] for finding in json.loads(done.stdout)}
    assert (done.returncode, levels["device"], levels["hub"]) == (2, "problem", "ok")
    assert "hf_very_secret" not in done.stdout + done.stderr
    assert tree(project) == before


def test_another_system_is_refused_and_another_processor_is_a_note(project, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert ("system", "warning") in look(project)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert "Darwin on aarch64" in refuse(project)


NO_NETWORK = {"SSL_CERT_FILE": "/nowhere/ca", "ALL_PROXY": "socks5://127.0.0.1:1", "HTTPS_PROXY": "ftp://127.0.0.1:1"}
NO_HUB = {"HF_TOKEN": "hf_some", "HF_ENDPOINT": "http://127.0.0.1:9"}
REPLACED = "downstream.squad.publish.folder=models/squad"
NOT_OURS = ("downstream.squad.publish.folder=mine", "corpus.source=files", "corpus.path=text")


@pytest.mark.parametrize(
    ("variables", "overrides", "reasons"),
    [
        (NO_NETWORK, (), ("SSL_CERT_FILE=/nowhere/ca", "socksio", "has the scheme 'ftp'")),
        ({"SSL_CERT_FILE": "/etc/hostname"}, (), ("SSL_CERT_FILE=/etc/hostname",)),
        ({"PODIUM_CHECK_SECONDS": "soon"}, (), ("PODIUM_CHECK_SECONDS='soon'",)),
        (NO_HUB, (*HUB, "corpus.demo_documents=1000000000000"), ("9 (HF_ENDPOINT)", "pretrain_rows.*.duplicates")),
        ({}, (REPLACED, "checkpoint.remote=file/below"), ("finetune@squad replaces", "(checkpoint.remote)")),
        ({}, (*NOT_OURS, "checkpoint.remote=pigeon://x"), ("mine exists", "gone.txt", "pigeon")),
        ({}, ("base_model.source=hub", "base_model.repository=user/none", "corpus.source=hub"), ("corpus.dataset",)),
    ],
)
def test_a_run_that_could_not_end_well_is_refused_with_what_is_to_be_changed(
    project, tmp_path, monkeypatch, variables, overrides, reasons
):
    for name, value in {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api", **variables}.items():
        monkeypatch.setenv(name, value)
    for folder in ("mine", "text"):
        (project / folder).mkdir()
        (project / folder / "notes.txt").write_text("mine")
    (project / "text/gone.txt").symlink_to(tmp_path / "nowhere")
    (project / "file").write_text("")
    refusal = refuse(project, *overrides)
    assert [reason for reason in reasons if reason not in refusal] == []
    unasked = {"SSL_CERT_FILE", "PODIUM_CHECK_SECONDS"} & set(variables)
    assert ("PREFECT_API_URL" in refusal) != bool(unasked), "no one is asked over a network that cannot be used"


def test_room_that_may_not_suffice_is_a_note_and_a_mount_that_takes_no_writing_a_refusal(project, monkeypatch, capsys):
    assert ("disk", "ok") in look(project)
    request = resolve_request(project, RunOptions())
    needed = run_estimate.estimate_model_bytes(request) + run_estimate.estimate_data_bytes(request)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=0.6 * needed))
    preflight.require_runnable(request)
    assert capsys.readouterr().err.startswith("note: disk: ")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert f"{project} is on a read-only file system" in refuse(project)


def test_the_estimate_of_the_disk_grows_with_text_maskings_and_parameters(project):
    def estimate(*overrides):
        request = resolve_request(project, RunOptions(None, overrides))
        return run_estimate.estimate_data_bytes(request), run_estimate.estimate_model_bytes(request)

    data, models = estimate()
    assert estimate("corpus.demo_documents=40000")[0] == pytest.approx(2 * data)
    assert estimate("pretrain_rows.phase1.duplicates=3")[0] > data
    assert estimate("model.num_layers=4")[1] > models
    sizes = []
    for words in (1000, 3000):
        (project / "text.txt").write_bytes(b"word " * words)
        sizes.append(estimate("corpus.source=files", f"corpus.path={project / 'text.txt'}")[0])
    assert sizes[1] == pytest.approx(3 * sizes[0])
    model = ModelConfig(30522, **resolve_request(project, RunOptions("cpu-base-paddle")).params.model.model_dump())
    assert model_parameters(model, "pretraining") == 110_106_428, "as BertForPreTraining of bert-base-uncased has"


OURS = f'exec {sys.executable} "$@"'
DOUBLE = {"PYTHONPATH": str(ROOT / "tests" / "doubles" / "poptorch_double"), "PODIUM_DOUBLE_IPUS": "4"}


@pytest.mark.parametrize(
    ("script", "variables", "finding", "reason"),
    [
        (None, {}, ("device", "problem"), "/python does not answer the device check"),
        (f'exec {sys.executable} -S "$@"', {}, ("device", "problem"), "lacks numpy, pyarrow, safetensors, torch"),
        ("echo no such thing; exit 3", {}, ("device", "problem"), "exit code 3 (no such thing)"),
        ("exec sleep 60", {"PODIUM_CHECK_SECONDS": "0.5"}, ("device", "warning"), "no answer within 0.5 s"),
        (OURS, {"CUDA_VISIBLE_DEVICES": ""}, ("device", "ok"), "cpu (auto: no poptorch in this Python"),
        (OURS, {"PODIUM_DEVICE_LAUNCHER": "nowhere-run -n 2"}, ("launcher", "problem"), "nowhere-run is not on PATH"),
        (OURS, {"PODIUM_DEVICE_LAUNCHER": "nowhere-run '"}, ("launcher", "problem"), "cannot be parsed"),
        # 4 IPUs x 4 replicas of pre-training; fine-tuning has fewer.
        (OURS, DOUBLE, ("device", "problem"), "needs 16 IPUs"),
    ],
)
def test_the_python_and_the_launcher_of_device_jobs_are_asked(
    project, monkeypatch, tmp_path, script, variables, finding, reason
):
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    monkeypatch.delenv("PODIUM_STAGE_KINDS")
    for name, value in {"PODIUM_DEVICE_PYTHON": str(python), **variables}.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    preset = "ipu-base-pod16-examples" if "PODIUM_DOUBLE_IPUS" in variables else None
    assert reason in look(project, "device.runtime=auto", preset=preset, thorough=True)[finding]
    assert time.monotonic() - began < 50, "none sleeps for 60"


def test_a_device_is_not_asked_for_where_no_stage_that_needs_it_would_run(toy_project, monkeypatch):
    """The toy stages stand for a training that was done; it depends on its code alone, and not on the device."""
    monkeypatch.setenv("PODIUM_DEVICE_PYTHON", "/nowhere/python")
    monkeypatch.setenv("PODIUM_CHECK_SECONDS", "120")
    plan, stage = toy_project / "dvc.yaml", toy_project / "stage.py"
    plan.write_text(plan.read_text().replace("stage.py first,", "stage.py first, meta: {host: device},"))
    assert ("device", "problem") in look(toy_project)
    subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=toy_project, check=True, capture_output=True)
    assert ("device", "problem") not in look(toy_project)
    stage.write_text(stage.read_text() + "\n")
    assert ("device", "problem") in look(toy_project), "its code changed"


def test_a_host_that_only_restores_is_not_asked_for_a_device_and_workers_need_a_server_alone(project):
    assert ("device", "problem") not in look(project, "device.runtime=cuda")
    refusal = refuse(project, *HUB, "device.runtime=cuda", on_workers=True)
    assert refusal.startswith("nothing was started. server: ")


def write_questions(path, start=0):
    answer = {"text": "Rome", "answer_start": start}
    question = {"id": "1", "question": "What is old?", "answers": [answer]}
    paragraph = {"context": "Rome is old.", "qas": [question]}
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    return path


def test_columns_endings_and_broken_files_are_found_before_the_first_stage_and_good_ones_named(project, tmp_path):
    text, train, dev, vocabulary = (tmp_path / name for name in ("text", "train.json", "dev.json", "vocab.txt"))
    text.mkdir()
    (text / "a.jsonl").write_text('{"body": "words"}\n')
    write_questions(train, start=40)
    dev.write_text("{")
    vocabulary.write_text("[UNK]\n")
    data = "downstream.squad.data"
    questions = (f"{data}.source=files", f"{data}.train_path={train}", f"{data}.dev_path={dev}")
    corpus = ("corpus.source=files", f"corpus.path={text}")
    others = ("tokenizer.source=file", f"tokenizer.path={vocabulary}", "pretrain_rows.source=corpus")
    findings = look(project, *questions, *corpus, *others, "downstream.glue-sst2={kind: glue, task: sst2}")
    assert "has no column 'text'; its columns are body" in findings["corpus", "problem"]
    assert "answer_start" in findings["squad", "problem"]
    assert "lacks [PAD]" in findings["vocabulary", "problem"]
    assert "downstream.glue-sst2.data.path" in findings["glue-sst2", "problem"]
    (text / "a.jsonl").write_text('{"text": "words"}\n' * 10)
    for path in (train, dev):
        write_questions(path)
    findings = look(project, *questions, *corpus)
    assert {level for _, level in findings} == {"ok"}
    assert str(dev) in findings["squad", "ok"]


TAGGED = [f"Rome{number} B-LOC\nsleeps O\n" for number in range(40)]
ONE_CLASS = ["text,label", *(f"text {number},good" for number in range(40))]
PAIRS = ["anchor,positive", *(f"q {number},text {number}" for number in range(40))]


@pytest.mark.parametrize(
    ("kind", "lines", "again", "reason"),
    [
        ("classification", ONE_CLASS, False, "1 class(es) (good)"),
        ("ner", [line.replace("B-LOC", "O") for line in TAGGED], False, "have 0 entity types"),
        ("ner", TAGGED, True, "40 of 40 development"),
        ("pairs", PAIRS, True, "max_common_share=1"),
    ],
)
def test_files_of_which_nothing_can_be_learned_or_measured_are_refused_before_an_estimate(
    project, tmp_path, capsys, kind, lines, again, reason
):
    train = tmp_path / f"train.{'conll' if kind == 'ner' else 'csv'}"
    train.write_text("\n".join(lines))
    dev = f"dev_path: {train}" if again else "dev_path: null, dev_fraction: 0.5"
    data = f"data: {{source: files, train_path: {train}, {dev}}}"
    assert reason in refuse(project, f"downstream.own={{kind: {kind}, {data}}}", "downstream.squad=null")
    assert capsys.readouterr().out == ""


def test_a_text_of_too_few_documents_is_refused_and_a_slow_check_left_to_the_stage(project, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("One line. It has two sentences.\n" * 30)
    text = ("corpus.source=files", f"corpus.path={tmp_path / 'text.txt'}")
    assert "has 1 document; at least 10 are required" in look(project, *text)["corpus", "problem"]
    for override in ("corpus.layout=lines", "validate.min_documents=1"):
        assert ("corpus", "problem") not in look(project, *text, override)
    monkeypatch.setenv("PODIUM_CHECK_SECONDS", "0.01")
    assert "no answer within 0.01 s" in look(project, *text)["files", "warning"]


def test_the_power_of_the_development_set_is_said_before_the_first_stage(project, tmp_path):
    """The best constant answer with its share, and nothing where the file says too little."""
    texts, words, questions = (tmp_path / name for name in ("texts.csv", "words.conll", "questions.json"))
    texts.write_text("text,label\n" + "".join(f"text {n},{'bad' if n % 4 else 'good'}\n" for n in range(300)))
    words.write_text("\n".join(TAGGED))
    both = "train_path: {0}, dev_path: {0}, max_common_share: 1"
    data = {
        "own": f"{{kind: classification, data: {{{both.format(texts)}}}}}",
        "part": f"{{kind: classification, data: {{train_path: {texts}, dev_path: null, dev_fraction: 0.2}}}}",
        "few": f"{{kind: classification, data: {{{both.format(texts)}, limit_dev: 100}}}}",
        "value": f"{{kind: classification, multilabel: true, data: {{{both.format(texts)}}}}}",
        "names": f"{{kind: ner, data: {{{both.format(words)}}}}}",
        "asked": f"{{kind: squad, data: {{source: files, {both.format(write_questions(questions))}}}}}",
    }
    overrides = ("downstream.squad=null", *(f"downstream.{entry}={values}" for entry, values in data.items()))
    params = resolve_request(project, RunOptions(None, overrides)).params
    lines = {line.partition(":")[0]: line for line in describe_dev_sets(params)}
    assert re.findall(r"[\d.]+", lines["own"]) == ["300", "4.0", "75.0", "5.7"]
    sizes = {entry: re.search(r"With (\d+) development", line)[1] for entry, line in lines.items()}
    assert sizes == {"own": "300", "part": "60", "few": "100", "names": "40", "asked": "1"}
    assert "must reach about 11.0 points" in lines["names"]
    check = next(check for check in select_checks(params, [str(texts)]) if check.name == "own")
    findings = {finding.text for finding in run_check(check, params)}
    assert lines["own"] in findings
    assert any("300 of 300" in text for text in findings), "they are training examples as well"


def test_a_base_model_is_held_against_the_parameters_and_a_given_vocabulary(project, tmp_path):
    model = write_model(tmp_path / "model")
    assert ("base model", "ok") in look(project, *model)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    vocabulary = ("tokenizer.source=file", f"tokenizer.path={tmp_path / 'vocab.txt'}")
    assert "has 100 word embeddings, but the tokenizer has 6 entries" in refuse(project, *model, *vocabulary)
    (tmp_path / "model/model.safetensors").unlink()
    assert "has no weights" in refuse(project, *model)


def test_a_token_is_asked_for_its_rights_and_nothing_is_made_on_the_hub(project, hub, monkeypatch):
    assert look(project, *HUB)["hub", "ok"] == f"user may publish to user/name at {hub.endpoint}"
    monkeypatch.setenv("HF_TOKEN", hub.add_user("hf_reads", role="read"))
    assert "HF_TOKEN (of user) may only read" in refuse(project, *HUB)
    assert ("hub", "problem") not in look(project, *HUB, publish=False)
    assert {method for method, _, _ in hub.requests} == {"GET"}


def test_a_key_that_cannot_sign_is_found_before_the_first_stage_and_its_place_is_not_said(
    project, monkeypatch, tmp_path
):
    monkeypatch.setattr("tasks.release.signing.require_package", lambda error: None)
    monkeypatch.setenv("PODIUM_SIGNING_KEY", str(tmp_path / "secret-place.pem"))
    refusal = refuse(project, "publish.signing=key")
    assert "PODIUM_SIGNING_KEY" in refusal
    assert "secret-place" not in refusal
    assert ("signing", "problem") not in look(project, "publish.signing=key", publish=False)


def test_what_is_to_be_read_from_the_hub_must_be_there_and_a_folder_of_this_host_is_not_asked_for(
    project, hub, tmp_path
):
    base = ("base_model.source=hub", "base_model.repository=user/none")
    findings = look(project, *base, "corpus.source=hub", "corpus.dataset=user/nothing")
    assert findings["hub input", "problem"].startswith("base_model.repository=user/none")
    for key, source in (("tokenizer.repository", "tokenizer.source=hub"), ("corpus.dataset", "corpus.source=hub")):
        for value, names in ((tmp_path, []), ("user/name", ["user/name"])):
            questions = preflight.probe_hub(resolve_request(project, RunOptions(None, (source, f"{key}={value}"))))
            assert [given["name"] for question in questions for given in question.request["sources"]] == names


def test_the_remote_is_looked_at(project, tmp_path):
    config = "[core]\n    no_scm = true\n    remote = far\n['remote \"far\"']\n    url = {}\n"
    (project / ".dvc" / "config").write_text(config.format("oss://bucket/path"))
    assert "pip install dvc-oss" in refuse(project)
    (project / ".dvc" / "config").write_text(config.format("../../store"))
    assert look(project)["remote", "ok"] == f"the DVC remote far: {tmp_path / 'store'} (will be created)"


def test_what_a_program_said_before_its_time_was_over_counts(tmp_path):
    finding = {"name": "first", "level": "ok", "text": "seen"}
    code = f"import time; print('a library warns'); print({json.dumps(finding)!r}, flush=True); time.sleep(600)"
    (tmp_path / "slow_check.py").write_text(code)
    with probes.start_probes([probes.Probe("slow", "slow_check", {}, 2.0)], tmp_path) as wait:
        first, second = wait()
    assert dataclasses.asdict(first).items() >= finding.items()
    assert (second.level, "no answer within 2 s" in second.text) == ("warning", True)


def test_nothing_outlives_a_check_that_is_interrupted(tmp_path):
    (tmp_path / "sleeper.py").write_text("import time; time.sleep(60)")
    probe = probes.Probe("slow", "sleeper", {}, 60.0)
    with contextlib.suppress(KeyboardInterrupt), probes.start_probes([probe], tmp_path):
        [process] = [child for child in psutil.Process().children() if "sleeper" in child.cmdline()]
        raise KeyboardInterrupt
    assert not process.is_running()


UNSTATED = (*HUB, "publish.license=null", "publish.language=null")
CARD = "---\nlicense: mit\nlanguage: en\n---\n"
ADD = "--set publish.license=apache-2.0 --set publish.language=en"


LICENCES = [
    (None, (), {"on_workers": True}, ADD),
    (None, ("base_model.path=/on/the/worker",), {"on_workers": True}, ""),
    (None, (), {"publish": False}, ""),
    (None, ("publish.target=local",), {}, ""),
    ("---\nlicense: mit\n---\n", (), {}, "the language of the model"),
    ("---\nlicense: mit\n---\n", ("publish.language=am",), {}, ""),
    (CARD, (), {}, ""),
]


@pytest.mark.parametrize(
    ("card", "overrides", "choices", "reason"),
    [LICENCES[0], *(pytest.param(*case, marks=pytest.mark.soak) for case in LICENCES[1:])],
)
def test_a_release_on_the_hub_needs_a_licence_and_a_language_unless_the_card_of_the_given_model_has_them(
    project, hub, tmp_path, card, overrides, choices, reason
):
    given = (*UNSTATED, *write_model(tmp_path / "model"), *overrides)
    if card is not None:
        (tmp_path / "model/README.md").write_text(card)
    findings = look(project, *given, **choices)
    assert (("hub", "problem") in findings) == bool(reason)
    assert reason in findings.get(("hub", "problem"), "")
    if card == CARD:
        assert "publish.base_model" in findings["hub", "warning"]
        assert ("hub", "warning") not in look(project, *given, "publish.base_model=user/base")


def test_the_card_of_a_model_on_the_hub_answers(project, hub):
    model = hub.store.create("model", "user/model")
    given = (*UNSTATED, "base_model.source=hub", "base_model.repository=user/model")
    hub.store.add_files(model, {"config.json": b"{}"})
    assert ADD in refuse(project, *given)
    findings = look(project, *given, "base_model.repository=user/none")
    assert ("hub", "problem") not in findings, "said once, as an input"
    assert ("hub input", "problem") in findings
    hub.store.add_files(model, {"README.md": CARD.encode()})
    assert ("hub", "problem") not in look(project, *given)


@contextlib.contextmanager
def serving(status=200, body=b'"3.8.8"', certificate=None):
    """A server that gives each question this answer; its address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}/api"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "text", "refused"),
    [
        (404, b"{}", "answers 404", (True, True)),
        (200, b"<html>", "is not a Prefect API", (True, True)),
        (401, b"{}", "PREFECT_API_AUTH_STRING", (True, True)),
        (200, b'"3.4.0"', r"is 3\.4\.0; .* require Prefect 3\.8 or newer", (True, False)),
        (200, b'"3.8.0"', "Prefect 3.8.0 at ", (False, False)),
        (200, b'"3.10.1"', "Prefect 3.10.1 at ", (False, False)),
    ],
)
def test_a_server_that_is_none_or_older_than_the_client_is_refused_before_anything_is_created_there(
    status, body, text, refused
):
    with serving(status, body) as url, temporary_settings({PREFECT_API_URL: url}):
        findings = [check_server(required=required) for required in (True, False)]
    assert re.search(text, findings[0].text)
    assert tuple(finding.level != "ok" for finding in findings) == refused


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_that_nobody_signed_is_said(tmp_path):
    key, certificate = tmp_path / "both.pem", tmp_path / "crt.pem"
    words = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2 -subj /CN=127.0.0.1"
    options = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words.split(), *options], check=True, capture_output=True)
    key.write_bytes(key.read_bytes() + certificate.read_bytes())
    command = [sys.executable, "-m", "flows.checks.server"]
    with serving(certificate=key) as url:
        for trusted, level in (({}, "problem"), ({"SSL_CERT_FILE": str(certificate)}, "ok")):
            environment = {**os.environ, "PREFECT_API_URL": url, **trusted}
            done = subprocess.run(command, input='{"required": false}', env=environment, text=True, capture_output=True)
            assert json.loads(done.stdout)["level"] == level, done.stdout + done.stderr
            assert ("certificate" in done.stdout.lower()) == (level == "problem")
