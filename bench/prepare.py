"""Data preparation: questions to features (ours and run_qa's with datasets.map), and text to pre-training rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.data import resolve_params
from bench.protocol import Session, Stopwatch
from bench.setup import SEED


def _rounds(spec: dict[str, Any], session: Session, once: Callable[[], float]) -> None:
    for _ in range(spec["warmup"]):
        once()
    while session.next_round():
        watch = Stopwatch()
        units = once()
        session.report([watch.sample(units)])


def measure_questions(spec: dict[str, Any], session: Session) -> None:
    """Measure tasks.downstream.rows including its files; units are questions."""
    from tasks.downstream.kind import kind_of
    from tasks.downstream.packed_rows import write_rows
    from tasks.params.entries import find_entry

    entry = find_entry(resolve_params(spec["stages"]), "squad")
    encoder = kind_of(entry).encoder(entry)
    with tempfile.TemporaryDirectory() as folder:
        questions, tokenizer, rows = Path(spec["questions"]), Path(spec["tokenizer"]), Path(folder) / "rows"
        _rounds(spec, session, lambda: write_rows(encoder, "train", questions, tokenizer, rows).examples)


def measure_questions_peer(spec: dict[str, Any], session: Session) -> None:
    """Measure run_qa's prepare_train_features with datasets.map; settings: num_proc, pad (to the full length).

    The result stays in memory, so the peer does not write files, while ours does.
    """
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoTokenizer

    from bench.run_qa import prepare_train_features
    from tasks.downstream.squad.params import SquadRowsParams

    disable_progress_bars()
    params, settings = resolve_params(spec["stages"]).downstream["squad"].rows, spec["settings"]
    assert isinstance(params, SquadRowsParams)
    tokenizer = AutoTokenizer.from_pretrained(spec["tokenizer"])
    with tempfile.TemporaryDirectory() as folder:
        examples = Dataset.from_parquet(spec["questions"], cache_dir=folder, keep_in_memory=True)

        def once() -> float:
            examples.map(
                prepare_train_features,
                batched=True,
                remove_columns=examples.column_names,
                num_proc=settings.get("num_proc"),
                load_from_cache_file=False,
                keep_in_memory=True,
                fn_kwargs={
                    "tokenizer": tokenizer,
                    "row_length": params.row_length,
                    "doc_stride": params.doc_stride,
                    "pad": settings["pad"],
                },
            )
            return len(examples)

        _rounds(spec, session, once)


def measure_pretraining_rows(spec: dict[str, Any], session: Session) -> None:
    """Measure tasks.pretraining.rows.pretrain_rows including its files; units are real tokens of the rows."""
    from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows

    params = resolve_params(spec["stages"]).pretrain_rows
    with tempfile.TemporaryDirectory() as folder:

        def once() -> float:
            rows = Path(folder) / "rows"
            summary = write_pretrain_rows(params, "phase1", Path(spec["corpus"]), Path(spec["tokenizer"]), rows)
            return summary.manifest.real_tokens

        _rounds(spec, session, once)


def measure_packing(spec: dict[str, Any], session: Session) -> None:
    """Measure tasks.rows.packing on the requested number of lengths, drawn from the rows; units are sequences."""
    import numpy as np

    from bench.setup import Training
    from ipu_model.models.flat import flatten
    from ipu_model.rows.row_folder import RowFolder
    from tasks.rows.packing import pack_sequences

    training = Training.from_spec(spec)
    rows = RowFolder(Path(training.rows), training.row_kind, training.model)
    lengths = flatten(rows.take(np.arange(len(rows)))).lengths
    lengths = np.random.default_rng(SEED).choice(lengths, spec["settings"]["sequences"])
    manifest = rows.manifest

    def once() -> float:
        pack_sequences(lengths, manifest.row_length, manifest.max_sequences)
        return len(lengths)

    _rounds(spec, session, once)
