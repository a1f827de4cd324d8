"""What preparing a corpus will take, from a sample of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tasks.corpus.corpus import make_corpus
from tasks.estimates import data_estimate
from tasks.estimates.data_estimate import Estimate, StageCost, expected_mb, extrapolate, format_estimate
from tasks.params.overlays import resolve
from tasks.params.schema import Params, validate_params
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.stage.errors import InputError, ParamsError
from tasks.vocabulary.tokenizer import make_tokenizer
from tests.places import ROOT
from tests.tasks.pretraining.row_inputs import write_corpus


def params_with(*overrides: str) -> Params:
    return validate_params(resolve(yaml.safe_load((ROOT / "params.yaml").read_text("utf-8")), None, list(overrides)))


def test_what_grows_is_multiplied_and_what_does_not_is_paid_once() -> None:
    less, more = StageCost(3.0, 100.0), StageCost(9.0, 400.0)  # 2 s and 100 bytes a MB from 1 to 4 MB; 1 s once
    assert extrapolate(less, 1.0, more, 4.0, 10.0) == StageCost(21.0, 1000.0)


def test_a_judge_is_paid_for_every_frame_of_records() -> None:
    less, more = StageCost(2.0, records=10_000), StageCost(5.0, records=40_000)  # 1 s a MB, and 1 s for the frame
    whole = extrapolate(less, 1.0, more, 4.0, 20.0)
    assert whole.records == 200_000  # two frames of 100,000
    assert whole.cpu_s == 20.0 + 2 * 1.0


def test_the_size_of_a_source_is_known_before_it_is_read(tmp_path: Path) -> None:
    demo = params_with("corpus.demo_documents=5000").corpus
    assert expected_mb(demo) == pytest.approx(5000 * 236e-6, rel=0.02)
    (tmp_path / "a.txt").write_text("x" * 500_000)
    write_corpus(tmp_path / "sub", ["y" * 1000] * 300)
    files = params_with("corpus.source=files", f"corpus.path={tmp_path}").corpus
    assert expected_mb(files) == pytest.approx(0.5, abs=0.01), "the same text again and again is stored once"
    with pytest.raises(InputError, match="corpus.path"):
        expected_mb(params_with("corpus.source=files", f"corpus.path={tmp_path / 'none'}").corpus)
    assert expected_mb(params_with("corpus.source=hub", "corpus.dataset=a/b").corpus) is None


def test_the_disk_of_an_estimate_is_what_the_stages_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    params = params_with(
        "corpus.demo_documents=3000", "tokenizer.vocabulary_size=500", "pretrain_rows.held_out_fraction=0.0"
    )
    found = data_estimate.estimate(params, sample_mb=0.2)
    assert found.text_mb == pytest.approx(0.7, rel=0.03)
    assert list(tmp_path.iterdir()) == [], "an estimate leaves nothing behind"
    make_corpus(params.corpus, tmp_path / "corpus")
    make_tokenizer(params.tokenizer, 512, tmp_path / "corpus", tmp_path / "tokenizer")
    write_pretrain_rows(
        params.pretrain_rows, "phase2", tmp_path / "corpus", tmp_path / "tokenizer", tmp_path / "rows", 1
    )
    for stage, folder in (("corpus", "corpus"), ("pretrain_rows@phase2", "rows")):
        written = sum(path.stat().st_size for path in (tmp_path / folder).rglob("*") if path.is_file())
        assert found.stages[stage].disk == pytest.approx(written, rel=0.1), stage
    assert all(spent.cpu_s > 0 for spent in found.stages.values())
    assert found.stages["validate@corpus"].records == pytest.approx(3000, rel=0.03)


def test_the_report_counts_processes_and_says_when_the_disk_is_too_small() -> None:
    found = Estimate(
        20_000.0, 4.0, {"corpus": StageCost(7200.0, 5e9), "pretrain_rows@phase1": StageCost(7200.0, 120e9)}
    )
    text = format_estimate(found, 2, free=100 * 10**9)
    lines = {line.split("  ")[0]: line.split()[1:] for line in text.splitlines()}
    assert lines["pretrain_rows@phase1"] == ["2.0", "h", "60", "min", "120.0", "GB"]
    assert lines["all"] == ["4.0", "h", "3.0", "h", "125.0", "GB"]
    assert "free on this disk: 100.0 GB, NOT enough" in text
    assert "enough: free disk" not in format_estimate(found, 2, free=200 * 10**9)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["corpus.source=none", "pretrain_rows.source=files", "tokenizer.source=file"], "rows are not built from text"),
        (["corpus.demo_documents=3"], "3 documents are too few"),
    ],
)
def test_what_cannot_be_estimated_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises((ParamsError, InputError), match=said):
        data_estimate.estimate(params_with(*overrides))
