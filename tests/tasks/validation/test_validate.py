"""The judge and the command line of validation."""

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.stage.errors import InputError
from tasks.validation.pretraining_checks import CorpusData
from tasks.validation.validate import main, render_page
from tests.places import ROOT
from tests.tasks.hostile import Page, without_own_script
from tests.tasks.validation.validation_data import (
    LIMITS,
    corpus_columns,
    row_columns,
    validate,
    write_corpus,
    write_rows,
    write_tokenizer,
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Python in a checkout, whose code is the project's."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return lambda *words: subprocess.run([sys.executable, *words], capture_output=True, text=True)


def test_the_command_writes_both_reports_says_what_is_wrong_and_exits_with_1(run):
    columns = corpus_columns()
    columns["document_id"][3] = "<script>alert(1)</script>"
    columns["text"][3] = None
    write_corpus(Path("data/corpus"), columns)
    done = run("-m", "tasks.validation.validate", "corpus")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "1 of 10 checks failed" in done.stderr
    assert "texts_present" in done.stderr
    verdict = json.loads(Path("reports/validation/corpus.json").read_text(encoding="utf-8"))
    assert (verdict["data"], verdict["valid"], verdict["rows"]) == ("corpus", False, 12)
    html = Path("reports/validation/corpus.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in html
    assert "<script" not in without_own_script(html)


ROWS_ALONE = """
import sys
from tasks.validation.validate import main
sys.argv = ["validate", "phase1"]
main()
print([name for name in ("great_expectations", "pandas") if name in sys.modules])
"""


def test_sound_rows_are_accepted_without_loading_great_expectations(run):
    tokenizer = write_tokenizer(Path("data/tokenizer"))
    write_rows(Path("data/rows/phase1"), "pretrain", row_columns("pretrain"), tokenizer)
    done = run("-c", ROWS_ALONE)
    assert done.stdout.startswith("phase1: 4 rows, 27 checks passed"), done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert json.loads(Path("reports/validation/phase1.json").read_text(encoding="utf-8"))["valid"]
    suite = json.loads(Path("reports/expectations/phase1.json").read_text(encoding="utf-8"))
    assert (suite["name"], len(suite["expectations"])) == ("phase1", 27)


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


EVIL = "<script>alert('x')</script>\"&"


@pytest.mark.parametrize("document", ["doc-3", EVIL], ids=["valid", "not valid"])
def test_the_page_is_whole_and_loads_nothing_and_judging_asks_for_nothing(tmp_path, monkeypatch, document):
    def refuse(*args, **kwargs):
        raise AssertionError(f"connects to {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    columns = corpus_columns()
    columns["document_id"][3], columns["text"][3] = document, " " if document == EVIL else "A town."
    verdict = validate(CorpusData(write_corpus(tmp_path / "data", columns), LIMITS))
    assert verdict["valid"] == (document != EVIL)
    page = Page(html := without_own_script(render_page({**verdict, "not_checked": [document]})))
    tags = [tag for tag, _ in page.elements if tag not in ("meta", "br")]
    assert not {*tags} & {"script", "link", "img", "iframe", "object", "base", "form"}
    opened = []
    for tag in tags:
        if tag.startswith("/"):
            assert f"/{opened.pop()}" == tag
        else:
            opened.append(tag)
    assert opened == []
    attributes = [*zip((name for _, names in page.elements for name in names), page.values, strict=True)]
    styles = [value for name, value in attributes if name == "style"]
    assert all(re.fullmatch(r"margin-left:[\d.]+%;width:[\d.]+%", style) for style in styles)
    assert [value for name, value in attributes if name in ("href", "src")] == ["#content"]
    assert not re.search(r"url\(|@import|https?://(?!www.w3.org/2000/svg)", html)
