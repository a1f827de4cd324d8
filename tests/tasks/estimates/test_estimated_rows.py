"""The rows of a run before they are made: what is there is believed, what is not is estimated, and said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.estimates.planned_jobs import FILL, NAMELESS, RowEstimator, planned_jobs, take_share, text_packing_factor
from tasks.stage import artifacts
from tests.ipu_model.tiny_jobs import make_columns, write_rows
from tests.places import ROOT
from tests.plans import params_of


def test_what_a_recipe_says_is_taken_and_the_rest_is_said(tmp_path: Path) -> None:
    packed = RowEstimator(params_of("ipu-large-pod16-examples-packed"), ROOT, tmp_path, ()).all()
    phase = packed[artifacts.rows_folder("phase2")]
    assert (phase.manifest.row_length, phase.manifest.max_sequences) == (512, 3)
    assert phase.manifest.packing_factor == pytest.approx(2.0)
    assert phase.manifest.packing_efficiency == pytest.approx(FILL)
    assert "2 sequences per row of 512 tokens, as for Wikipedia" in phase.assumed
    squad = packed[artifacts.rows_folder("squad", "train")].manifest
    assert (squad.rows, squad.sequences, squad.packing_factor) == (87_599, 87_599, 1.0), "rajpurkar/squad, unpacked"
    assert packed[artifacts.rows_folder("squad", "dev")].manifest.rows == 10_570


def test_the_demo_is_packed_as_its_short_documents_are() -> None:
    """A run of it, with 1,500 documents, had 1.34 sequences in a row of 64 tokens and 2.46 in one of 128."""
    found = RowEstimator(params_of(None), ROOT, ROOT / "none", ()).all()
    assert found[artifacts.rows_folder("phase1")].manifest.packing_factor == pytest.approx(1.34, rel=0.1)
    assert found[artifacts.rows_folder("phase2")].manifest.packing_factor == pytest.approx(2.46, rel=0.1)


def test_rows_that_are_there_are_believed_unless_they_will_be_made_anew(tmp_path: Path) -> None:
    params = params_of(None)
    folder = tmp_path / artifacts.rows_folder("phase1")
    made = write_rows(folder, "pretrain", make_columns("pretrain", 12))
    found = RowEstimator(params, ROOT, tmp_path, ()).all()
    assert found[artifacts.rows_folder("phase1")].manifest == made
    assert found[artifacts.rows_folder("phase1")].assumed == ()
    assert found[artifacts.rows_folder("phase2")].manifest.vocab_size == made.vocab_size, "of the same tokenizer"
    estimated_again = RowEstimator(params, ROOT, tmp_path, ("pretrain_rows@phase1", "tokenizer")).all()
    assert (
        estimated_again[artifacts.rows_folder("phase1")].manifest.row_length == params.pretrain_rows.phase1.row_length
    )
    assert estimated_again[artifacts.rows_folder("phase2")].manifest.vocab_size == params.tokenizer.vocabulary_size


def test_a_job_of_another_encoder_has_its_config_json_beyond_the_sizes(tmp_path: Path) -> None:
    """So that a measurement builds the model that will be trained: of DeBERTa, with its relative attention."""
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "deberta-v2", **sizes, "intermediate_size": 32, "relative_attention": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    base = ("base_model.source=folder", f"base_model.path={tmp_path}", "model.family=deberta-v2", "packing=false")
    params = params_of(None, *base, "pretrain.enabled=false", "pretrain_rows.next_sentence=false")
    [planned] = planned_jobs(params, ROOT, tmp_path / "none", ["finetune@squad"])
    assert planned.job.model is not None
    assert (planned.job.model.settings or {})["relative_attention"] is True


def test_examples_are_counted_where_somebody_says_and_guessed_where_nobody_does(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_bytes(b"x" * 346_000)
    entry = "downstream.squad.data"
    given = (f"{entry}.source=files", f"{entry}.train_path={tmp_path / 'train.json'}")

    def train(*overrides: str) -> tuple[int, tuple[str, ...]]:
        rows = RowEstimator(params_of("bert", *overrides), ROOT, tmp_path, ()).all()[
            artifacts.rows_folder("squad", "train")
        ]
        return rows.manifest.sequences, rows.assumed

    count, words = train(*given)
    assert count == 1000
    assert "1,000 examples, from the 0.3 MB of the file" in words
    assert train(*given, f"{entry}.limit_train=7")[0] == 7
    count, words = train(f"{entry}.source=hub", f"{entry}.dataset=someone/questions")
    assert count == NAMELESS
    assert any("is unknown" in word for word in words)


def test_a_vocabulary_file_is_counted(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nthe\n\n")
    params = params_of("bert", "tokenizer.source=file", f"tokenizer.path={tmp_path}")
    assert RowEstimator(params, ROOT, tmp_path, ()).vocabulary == 3


def test_held_out_rows_are_a_share_of_those_of_training(tmp_path: Path) -> None:
    params = params_of(None, "downstream.squad.rows.held_out_fraction=0.1")
    found = RowEstimator(params, ROOT, tmp_path, ()).all()
    train = artifacts.rows_folder("squad", "train")
    assert found[train].manifest.sequences == 10_800
    assert found[train / artifacts.HELD_OUT].manifest.sequences == 1_200
    assert take_share(found[train].manifest, 1e-9).rows == 1


@pytest.mark.parametrize(
    ("length", "factor"), [(32, 1.1), (64, 1.1), (128, 1.17), (256, 1.435), (512, 2.0), (1024, 3.2), (8192, 20.0)]
)
def test_packing_lies_between_what_was_published_and_grows_beyond(length: int, factor: float) -> None:
    assert text_packing_factor(length) == pytest.approx(factor)


def test_jobs_are_those_that_the_stages_will_start(tmp_path: Path) -> None:
    params = params_of("ipu-base-pod16-examples")
    stages = ["tokenizer", "pretrain@phase1", "finetune@squad", "predict@squad", "gate@squad"]
    jobs = {one.name: one.job for one in planned_jobs(params, ROOT, tmp_path, stages)}
    assert list(jobs) == ["pretrain@phase1", "finetune@squad", "predict@squad"]
    first = jobs["pretrain@phase1"]
    assert (first.kind, first.head, first.runtime) == ("pretrain", "pretraining", "ipu")
    assert first.schedule is not None
    assert first.schedule.steps == 7038
    assert first.evaluation is not None, "rows are held out of the demo's and of the recipe's text"
    assert first.ipu_config is not None
    assert first.ipu_config["layers_per_ipu"] == [0, 4, 4, 4]
    assert jobs["predict@squad"].model is not None, "no weights are needed"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    assert planned_jobs(params, ROOT, tmp_path, ["tokenizer"]) == []
