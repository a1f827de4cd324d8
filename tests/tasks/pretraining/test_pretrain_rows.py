import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.pretraining.rows import chunks
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.records.interpretation import read_reading
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tasks.validation.pretraining_checks import PretrainRows
from tasks.validation.row_checks import RowSource
from tasks.vocabulary.encoding import load_tokenizer
from tests.places import ROOT, SHARED
from tests.tasks.pretraining.row_inputs import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL,
    folder_bytes,
    pretrain_params,
    random_texts,
    read_rows,
    save_tokenizer,
    tokenizer_of,
    word_tokenizer,
    write_corpus,
)
from tests.tasks.vocabulary.fast_tokenizers import save_fast_tokenizer

Rows = dict[str, np.ndarray]


def make(folder: Path, texts: Sequence[str | None], phase: str = "phase1", workers: int = 1, **params: object) -> Path:
    """Rows of `texts` in folder/rows."""
    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        word_tokenizer(tokenizer)
    corpus = write_corpus(folder / "corpus", texts)
    write_pretrain_rows(pretrain_params(**params), phase, corpus, tokenizer, folder / "rows", workers)  # type: ignore[arg-type]
    return folder / "rows"


CORPORA = SHARED / "data/cases/corpora"
ACCENTS = "of the words have accents, vowel signs or tone marks, which the tokenizer removes"


@pytest.mark.skipif(not CORPORA.is_dir(), reason="real corpora are not part of the project")
@pytest.mark.parametrize(
    ("name", "settings", "lowercase", "said"),
    [
        ("hindi-danda-sentences.txt", {}, True, [f"47.6% {ACCENTS}"]),
        ("hindi-danda-sentences.txt", {}, False, []),
        ("vietnamese-tones-lost.txt", {}, True, [f"89.6% {ACCENTS}"]),
        (
            "thai-no-blanks-all-unk.txt",
            {},
            False,
            ["100.0% of the documents are one sentence", "100.0% of the characters are in words of more than 100"],
        ),
        (
            "thai-no-blanks-all-unk.txt",
            {"next_sentence": False},
            False,
            ["100.0% of the characters are in words", "no document has the 64 tokens of a row of phase1"],
        ),
    ],
)
def test_text_that_is_probably_not_read_as_it_is_meant_is_noted_and_an_option_ends_it(
    tmp_path: Path, name: str, settings: dict[str, object], lowercase: bool, said: list[str]
) -> None:
    texts = (CORPORA / name).read_text(encoding="utf-8").split("\n\n")
    save_tokenizer(tmp_path / "tokenizer", [*SPECIAL, "ma"], lowercase)
    notes = read_reading(make(tmp_path, texts, **settings))["remarks"]
    assert [note[: len(words)] for note, words in zip(notes, said, strict=True)] == said


def test_sentences_longer_than_a_sequence_are_noted_where_rows_are_validated(tmp_path: Path) -> None:
    short, long = "Ba be. ", f"Ba {'be ' * 99}. "
    for few, texts in ((False, [short + short + long]), (True, [short + long + long])):
        rows = make(tmp_path / str(few), texts * 3, row_length=16)
        source = RowSource("phase1", rows, rows.with_name("tokenizer"), "pretrain_rows.phase1", 16)
        found = [
            note
            for note in PretrainRows(source, 0.15).notes()
            if "66.7% of the sentences are longer than a sequence" in note
        ]
        assert len(found) == few


def test_text_without_a_document_as_long_as_a_row_says_how_many_rows_it_makes(tmp_path: Path) -> None:
    settings = {"next_sentence": False, "row_length": 128, "max_sequences_per_row": 8, "held_out_fraction": 0.0}
    short = ["Ba be. " * 10] * 32  # of 30 tokens and 2 special ones
    for folder, texts, notes in (("short", short, 1), ("long", [*short, "Ba be. " * 42], 0)):
        rows = make(tmp_path / folder, texts, **settings)
        found = read_reading(rows)["remarks"] if (rows / "reading.json").exists() else []
        assert len(found) == notes
    [note] = read_reading(tmp_path / "short" / "rows")["remarks"]
    assert "8 rows have 4.0 sequences" in note


def sequences_of(rows: Rows) -> Iterator[tuple[int, np.ndarray, np.ndarray, int]]:
    """(row, first segment, second segment, next-sentence label) with the masked tokens put back; checks the format."""
    for row in range(len(rows["input_ids"])):
        ids = rows["sequence_ids"][row]
        present = [start for start in rows["cls_positions"][row].tolist() if start >= 0]
        borders = [*present, int((ids > 0).sum())]
        assert present[0] == 0
        assert rows["cls_positions"][row].tolist() == present + [-1] * (len(rows["cls_positions"][row]) - len(present))
        tokens = rows["input_ids"][row].copy()
        used = rows["masked_labels"][row] != -100
        places = rows["masked_positions"][row][used]
        assert (np.diff(places) > 0).all()
        assert not rows["masked_positions"][row][~used].any()
        assert set(rows["masked_labels"][row][used].tolist()).isdisjoint(range(5))
        tokens[places] = rows["masked_labels"][row][used]
        assert not tokens[borders[-1] :].any()
        assert not ids[borders[-1] :].any()
        for number, (start, stop) in enumerate(zip(borders, borders[1:], strict=False)):
            sequence = tokens[start:stop]
            assert (ids[start:stop] == number + 1).all()
            assert rows["position_ids"][row][start:stop].tolist() == list(range(stop - start))
            separators = np.flatnonzero(sequence == SEP).tolist()
            assert sequence[0] == CLS
            assert len(separators) == 2
            assert separators[1] == stop - start - 1
            types = rows["token_type_ids"][row][start:stop]
            assert types.tolist() == [0] * (separators[0] + 1) + [1] * (separators[1] - separators[0])
            masks = ((places >= start) & (places < stop)).sum()
            assert 1 <= masks <= max(1, round((stop - start) * 0.15))
            label = int(rows["next_sentence_labels"][row][number])
            yield row, sequence[1 : separators[0]], sequence[separators[0] + 1 : -1], label
        assert (rows["next_sentence_labels"][row][len(present) :] == -100).all()


def as_text(ids: np.ndarray | list[int]) -> str:
    return "".join(map(chr, np.asarray(ids).tolist()))


@pytest.mark.parametrize(("row_length", "max_sequences", "masks"), [(32, 3, 4), (64, 1, None), (128, 8, None)])
def test_rows_hold_masked_pairs_of_real_neighbours_and_strangers(
    tmp_path: Path, row_length: int, max_sequences: int, masks: int | None
) -> None:
    texts = random_texts(150)
    shape = {"row_length": row_length, "max_sequences_per_row": max_sequences, "max_predictions_per_row": masks}
    folder = make(tmp_path, texts, **shape)
    tokenizer = tokenizer_of(tmp_path / "tokenizer")
    documents = [as_text(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    rows, manifest = read_rows(folder), read_manifest(folder)
    count = {0: 0, 1: 0}
    real_tokens = 0
    for _, first, second, label in sequences_of(rows):
        count[label] += 1
        real_tokens += len(first) + len(second) + 3
        homes = {number for number, text in enumerate(documents) if as_text(first) in text}
        truncated = len(first) + len(second) + 3 == row_length
        if label == 0:
            assert any(
                as_text(first) + as_text(second) in documents[home]
                or (truncated and as_text(second) in documents[home].partition(as_text(first))[2])
                for home in homes
            )
        else:
            assert {n for n, text in enumerate(documents) if as_text(second) in text} - homes
    assert manifest.sequences == sum(count.values())
    assert manifest.real_tokens == real_tokens
    assert 0.4 < count[1] / manifest.sequences < 0.75
    assert (manifest.row_length, manifest.max_sequences) == (row_length, max_sequences)
    assert manifest.rows == len(rows["input_ids"])
    most = (rows["masked_labels"] != -100).sum(axis=1).max()
    assert most <= manifest.max_predictions
    assert masks in (None, most), "no more masked positions than slots"


def test_80_10_10_of_15_percent_in_the_rows(tmp_path: Path) -> None:
    rows = read_rows(make(tmp_path, random_texts(1500, sentences=(4, 8)), row_length=64, duplicates=2))
    real = int((rows["sequence_ids"] > 0).sum())
    row, slot = np.nonzero(rows["masked_labels"] != -100)
    labels, after = rows["masked_labels"][row, slot], rows["input_ids"][row, rows["masked_positions"][row, slot]]
    total = len(labels)
    assert total / real == pytest.approx(0.15, abs=0.003)
    for share, expected in (((after == MASK).mean(), 0.8), ((after == labels).mean(), 0.1)):
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / total) + 0.001


def test_rows_are_the_same_bytes_whatever_the_number_of_processes_and_of_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_DOCUMENTS", 40)
    texts = [*random_texts(230), "", " \n ", "\u200b", None]
    one = folder_bytes(make(tmp_path / "one", texts, duplicates=2, workers=1))
    assert set(one) == {"manifest.json", "rows-00000.arrow"}
    assert one == folder_bytes(make(tmp_path / "two", texts, duplicates=2, workers=2))
    corpus, rows = write_corpus(tmp_path / "corpus", texts, rows_per_group=7), tmp_path / "three"
    made = write_pretrain_rows(pretrain_params(duplicates=2), "phase1", corpus, tmp_path / "one/tokenizer", rows, 1)
    assert one == folder_bytes(rows)
    assert (made.counts["documents"], made.counts["skipped"]) == (234, 4), "documents without tokens"


def test_duplicates_phases_and_seeds_give_other_pairs_and_masks(tmp_path: Path) -> None:
    texts = random_texts(60)
    plain = read_rows(make(tmp_path, texts))["input_ids"]
    twice = read_rows(make(tmp_path, texts, duplicates=2))["input_ids"]
    assert twice[: len(plain)].tolist() == plain.tolist()
    second = {row.tobytes() for row in twice[len(plain) :]}
    assert len(second & {row.tobytes() for row in plain}) < 3
    for changed in ({"phase": "phase2"}, {"seed": 4}):
        other = read_rows(make(tmp_path, texts, **changed))["input_ids"]  # type: ignore[arg-type]
        assert len({row.tobytes() for row in other} & {row.tobytes() for row in plain}) < 3
    again = read_rows(make(tmp_path, texts))["input_ids"]
    assert again.tolist() == plain.tolist()


def test_text_without_full_stops_is_kept(tmp_path: Path) -> None:
    words = [word for text in random_texts(200) for word in text.lower().replace(".", "").split()]
    folder = make(tmp_path, [" ".join(words[:3000]), " ".join(words[3000:6000])], short_sequence_probability=0.0)
    seen = [(len(first), label) for _, first, _, label in sequences_of(read_rows(folder))]
    assert sum(length for length, _ in seen) > 2500  # first segments alone; a plain cut would keep 60 tokens
    assert {label for _, label in seen} == {0, 1}


def test_special_tokens_in_the_text_are_ordinary_characters(tmp_path: Path) -> None:
    texts = ["Ba [SEP] de [CLS] fi [MASK] go [PAD] ba. Lu ka." for _ in range(30)]
    rows = read_rows(make(tmp_path, texts))
    assert len(list(sequences_of(rows))) >= 30  # checks two [SEP] per sequence and no label below 5
    assert not ((rows["input_ids"] == PAD) & (rows["sequence_ids"] > 0)).any()


def test_the_stage_runs_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(tmp_path / "data/corpus", random_texts(2500))
    word_tokenizer(tmp_path / "data/tokenizer")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    for name, value in (("PODIUM_WORKERS", "2"), ("PYTHONPATH", str(ROOT))):
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "tasks.pretraining.rows.pretrain_rows", "phase2"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    counts = re.search(r"^phase2: .* from (\d+) documents .* (\d+) documents held out", finished.stdout)
    assert counts, finished.stderr
    assert int(counts[1]) + int(counts[2]) == 2500
    assert 5 < int(counts[2]) < 45  # pretrain_rows.held_out_fraction is 0.01
    assert [path.name for path in (tmp_path / "data/rows").iterdir()] == ["phase2"]


def test_inputs_that_rows_cannot_be_made_of_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    corpus, tokenizer = write_corpus(tmp_path / "corpus", ["Ba de. Fi go."]), word_tokenizer(tmp_path / "tokenizer")
    rows, part = tmp_path / "out" / "rows", tmp_path / "corpus/part-00000.parquet"

    def refuse(said: str, corpus: Path = corpus, tokenizer: Path = tokenizer, **params: int) -> None:
        with pytest.raises(InputError, match=said):
            write_pretrain_rows(pretrain_params(**params), "phase1", corpus, tokenizer, rows, 1)

    refuse("dvc repro corpus", corpus=tmp_path / "none")
    refuse("dvc repro tokenizer", tokenizer=tmp_path / "none")
    refuse("has no mask_token", tokenizer=save_tokenizer(tmp_path / "lacking", [*SPECIAL[:4], "ba"]))
    refuse("max_predictions_per_row=2 must be between", max_predictions_per_row=2)
    pq.write_table(pa.table({"words": ["a"]}), part)
    refuse("has the columns words but not text")
    part.write_bytes(b"PAR1 is how it begins, and then it is damaged")
    refuse("cannot be read as Parquet")
    assert not rows.parent.exists()


def test_a_corpus_without_any_token_is_refused_and_leaves_the_old_rows(tmp_path: Path) -> None:
    before = folder_bytes(make(tmp_path, random_texts(20)))
    with pytest.raises(InputError, match="none of the 2 documents.*corpus.path"):
        make(tmp_path, ["", " "])
    assert folder_bytes(tmp_path / "rows") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "rows", "tokenizer"]


MEASURE = """
    import resource, sys
    from pathlib import Path
    from tasks.pretraining.rows import pretrain_rows
    from tasks.pretraining.rows import chunks
    from tests.tasks.pretraining.row_inputs import pretrain_params, random_texts, word_tokenizer, write_corpus
    folder, times = Path(sys.argv[1]), int(sys.argv[2])
    chunks.CHUNK_DOCUMENTS = 200
    tokenizer = word_tokenizer(folder / "tokenizer")
    corpus = folder / "corpus"
    texts = random_texts(1000)
    write_corpus(corpus, texts)
    for copy in range(1, times):
        (corpus / f"part-{copy:05d}.parquet").write_bytes((corpus / "part-00000.parquet").read_bytes())
    made = pretrain_rows.write_pretrain_rows(pretrain_params(128), "phase1", corpus, tokenizer, folder / "rows", 1)
    print(made.counts["documents"], made.manifest.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    measured = []
    for times in (1, 10):
        folder = tmp_path / str(times)
        command = [sys.executable, "-c", textwrap.dedent(MEASURE), str(folder), str(times)]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        measured.append([int(number) for number in finished.stdout.split()])
    (small, small_rows, small_kib), (large, large_rows, large_kib) = measured
    assert large == 10 * small == 10000
    assert large_rows > 9 * small_rows
    # Holding the rows alone of ten times the corpus would take 6 MB more.
    assert large_kib - small_kib < 4 * 1024, measured


def test_pairs_with_four_special_tokens_fit_their_rows(tmp_path: Path) -> None:
    corpus, tokenizer = write_corpus(tmp_path / "corpus", random_texts(30)), save_fast_tokenizer("roberta", tmp_path)
    made = write_pretrain_rows(pretrain_params(64), "phase1", corpus, tokenizer, tmp_path / "rows", 1)
    ends = (read_rows(tmp_path / "rows")["input_ids"] == load_tokenizer(tokenizer).token_to_id("</s>")).sum()
    assert ends == 3 * made.manifest.sequences, "two between the texts and one at the end"
