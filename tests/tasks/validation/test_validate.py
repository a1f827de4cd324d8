"""The judge and the command line of validation."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tasks.params.schema import load_params
from tasks.stage.errors import InputError
from tasks.validation.checks import DataCheck
from tasks.validation.pretraining_checks import CorpusData
from tasks.validation.validate import main, validate_and_report
from tasks.validation.validators import CheckCrashed
from tests.places import ROOT
from tests.tasks.hostile import without_own_script
from tests.tasks.validation.validation_data import (
    corpus_columns,
    gx,
    row_columns,
    validate,
    write_corpus,
    write_rows,
    write_tokenizer,
)

LIMITS = load_params(ROOT / "params.yaml").validate_


def judged_corpus(folder, columns):
    return validate(CorpusData(write_corpus(folder, columns), LIMITS))


def test_a_check_that_cannot_be_evaluated_is_our_defect_and_no_verdict_on_the_data():
    check = DataCheck("lost", "text", "something", "nothing", maximum=0)
    with pytest.raises(CheckCrashed, match="lost"):
        gx().confirm([check], {"size": np.array([1])}, {})


def test_missing_features_do_not_pass_as_right():
    check = DataCheck("size", "text", "something", "nothing", maximum=0)
    with pytest.raises(CheckCrashed, match="1 of them without a value"):
        gx().validate([check], {"size": np.array([0.0, np.nan])})


def test_a_check_that_great_expectations_drops_is_noticed(monkeypatch):
    checks = [DataCheck(name, "text", "something", "nothing", maximum=0) for name in ("size", "age")]
    complete = gx()._gx.ExpectationSuite
    monkeypatch.setattr(
        gx()._gx, "ExpectationSuite", lambda name, expectations: complete(name, expectations=expectations[:1])
    )
    with pytest.raises(CheckCrashed, match="1 of 2 checks were evaluated"):
        gx().validate(checks, {"size": np.array([0]), "age": np.array([0])})


def test_nothing_is_sent_and_no_name_is_looked_up(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"connects to {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert judged_corpus(tmp_path / "data", corpus_columns())["valid"]


def run_stage(folder, name):
    return subprocess.run(
        [sys.executable, "-m", "tasks.validation.validate", name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_writes_both_reports_says_what_is_wrong_and_exits_with_1(tmp_path):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    columns = corpus_columns()
    columns["document_id"][3] = "<script>alert(1)</script>"
    columns["text"][3] = None
    write_corpus(tmp_path / "data" / "corpus", columns)
    done = run_stage(tmp_path, "corpus")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "1 of 10 checks failed (see reports/validation/corpus.html)" in done.stderr
    assert "texts_present" in done.stderr
    verdict = json.loads((tmp_path / "reports/validation/corpus.json").read_text(encoding="utf-8"))
    assert (verdict["data"], verdict["valid"], verdict["rows"]) == ("corpus", False, 12)
    html = (tmp_path / "reports/validation/corpus.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in html
    assert "<script" not in without_own_script(html)


def test_the_command_accepts_sound_rows(tmp_path, monkeypatch, capsys):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    tokenizer = write_tokenizer(tmp_path / "data" / "tokenizer")
    write_rows(tmp_path / "data" / "rows" / "phase1", "pretrain", row_columns("pretrain"), tokenizer)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["validate", "phase1"])
    main()
    printed = capsys.readouterr().out
    assert re.match(r"phase1: 4 rows, 27 checks passed, \d+\.\d s; reports/validation/phase1\.html", printed)
    assert json.loads(Path("reports/validation/phase1.json").read_text(encoding="utf-8"))["valid"]
    suite = json.loads(Path("reports/expectations/phase1.json").read_text(encoding="utf-8"))
    assert (suite["name"], len(suite["expectations"])) == ("phase1", 27)


ROWS_ALONE = """
import sys
from tasks.validation.validate import main
sys.argv = ["validate", "phase1"]
main()
print([name for name in ("great_expectations", "pandas") if name in sys.modules])
"""


def test_rows_are_judged_without_loading_great_expectations(tmp_path):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    tokenizer = write_tokenizer(tmp_path / "data" / "tokenizer")
    write_rows(tmp_path / "data" / "rows" / "phase1", "pretrain", row_columns("pretrain"), tokenizer)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ROWS_ALONE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_an_older_verdict_does_not_outlive_data_that_cannot_be_read(tmp_path, monkeypatch):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    report = tmp_path / "reports" / "validation" / "corpus.json"
    report.parent.mkdir(parents=True)
    report.write_text('{"valid": true}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["validate", "corpus"])
    with pytest.raises(InputError):
        main()
    assert not report.exists()


def test_equal_data_give_equal_reports(tmp_path, monkeypatch):
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        data = CorpusData(write_corpus(Path("data"), corpus_columns()), LIMITS)
        validate_and_report("corpus", lambda data=data: [data])
        files = [Path("reports/validation/corpus.html"), Path("reports/validation/corpus.json")]
        written.append([path.read_bytes() for path in files])
    assert written[0] == written[1]
