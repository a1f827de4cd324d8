import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.pretraining.rows import chunks
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.records.interpretation import read_reading
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tasks.validation.validators import LimitValidator
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
    unmask,
    word_tokenizer,
    write_corpus,
)
from tests.tasks.validation.validation_data import pretrain_data, validate
from tests.tasks.vocabulary.fast_tokenizers import save_fast_tokenizer


def make(folder, texts, phase="phase1", workers=1, **params):
    """Rows of `texts` in folder/rows."""
    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        word_tokenizer(tokenizer)
    corpus = write_corpus(folder / "corpus", texts)
    write_pretrain_rows(pretrain_params(**params), phase, corpus, tokenizer, folder / "rows", workers)
    return folder / "rows"


CORPORA = SHARED / "data/cases/corpora"
HINDI, VIETNAMESE, THAI = "hindi-danda-sentences.txt", "vietnamese-tones-lost.txt", "thai-no-blanks-all-unk.txt"


@pytest.mark.skipif(not CORPORA.is_dir(), reason="real corpora are not part of the project")
@pytest.mark.parametrize(
    ("name", "settings", "lowercase", "notes"),
    [
        (HINDI, {}, True, ["47.6% of the words have accents"]),
        (HINDI, {}, False, []),
        (VIETNAMESE, {}, True, ["89.6% of the words have accents"]),
        (THAI, {}, False, ["100.0% of the documents", "100.0% of the characters"]),
        (THAI, {"next_sentence": False}, False, ["100.0% of the characters", "no document has the 64"]),
    ],
)
def test_text_that_is_probably_not_read_as_it_is_meant_is_noted_and_an_option_ends_it(
    tmp_path, name, settings, lowercase, notes
):
    texts = (CORPORA / name).read_text(encoding="utf-8").split("\n\n")
    save_tokenizer(tmp_path / "tokenizer", [*SPECIAL, "ma"], lowercase)
    remarks = read_reading(make(tmp_path, texts, **settings))["remarks"]
    assert [remark[: len(note)] for remark, note in zip(remarks, notes, strict=True)] == notes


def test_sentences_longer_than_a_sequence_are_noted_where_rows_are_validated(tmp_path):
    short, long = "Ba be. ", f"Ba {'be ' * 99}. "
    for folder, text, count in (("few", short + short + long, 0), ("many", short + long + long, 1)):
        rows = make(tmp_path / folder, [text] * 3, row_length=16)
        notes = pretrain_data(rows, rows.with_name("tokenizer"), 16).notes()
        assert sum("66.7% of the sentences" in note for note in notes) == count


def test_text_without_a_document_as_long_as_a_row_says_how_many_rows_it_makes(tmp_path):
    settings = {"next_sentence": False, "row_length": 128, "max_sequences_per_row": 8}
    short = ["Ba be. " * 10] * 32  # of 30 tokens and 2 special ones
    [note] = read_reading(make(tmp_path / "short", short, **settings))["remarks"]
    assert "8 rows have 4.0 sequences" in note
    rows = make(tmp_path / "long", [*short, "Ba be. " * 42], **settings)
    assert not (rows / "reading.json").exists() or read_reading(rows)["remarks"] == []


def pairs_in(rows):
    """The segments of each sequence with the masked tokens put back, and its next-sentence label."""
    tokens = unmask(rows)
    assert not set(rows["masked_labels"].flat) & {*range(5)}
    for row, slot in zip(*np.nonzero(rows["cls_positions"] >= 0), strict=True):
        sequence = tokens[row, rows["sequence_ids"][row] == slot + 1]
        first, last = np.flatnonzero(sequence == SEP)
        assert (sequence[0], last) == (CLS, len(sequence) - 1)
        yield sequence[1:first], sequence[first + 1 : -1], int(rows["next_sentence_labels"][row, slot])


def as_text(ids):
    return "".join(map(chr, ids))


@pytest.mark.parametrize(("row_length", "max_sequences", "masks"), [(32, 3, 4), (64, 1, None), (128, 8, None)])
def test_rows_hold_masked_pairs_of_real_neighbours_and_strangers(tmp_path, row_length, max_sequences, masks):
    texts = random_texts(150)
    shape = {"row_length": row_length, "max_sequences_per_row": max_sequences, "max_predictions_per_row": masks}
    folder = make(tmp_path, texts, **shape)
    verdict = validate(pretrain_data(folder, tmp_path / "tokenizer", row_length), LimitValidator())
    assert [check for check in verdict["checks"] if not check["ok"]] == []
    tokenizer = tokenizer_of(tmp_path / "tokenizer")
    documents = [as_text(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    rows, manifest, strangers = read_rows(folder), read_manifest(folder), 0
    for first_ids, second_ids, label in pairs_in(rows):
        first, second = as_text(first_ids), as_text(second_ids)
        homes = {number for number, text in enumerate(documents) if first in text}
        truncated = len(first) + len(second) + 3 == row_length
        strangers += label
        if label == 0:
            assert any(
                first + second in documents[home] or (truncated and second in documents[home].partition(first)[2])
                for home in homes
            )
        else:
            assert {number for number, text in enumerate(documents) if second in text} - homes
    assert 0.4 < strangers / manifest.sequences < 0.75
    assert (manifest.row_length, manifest.max_sequences) == (row_length, max_sequences)
    used = rows["masked_labels"] != -100
    assert (np.diff(rows["masked_positions"])[used[:, 1:]] > 0).all()
    assert masks in (None, used.sum(axis=1).max())


def test_80_10_10_of_15_percent_in_the_rows(tmp_path):
    rows = read_rows(make(tmp_path, random_texts(1500, sentences=(4, 8)), row_length=64, duplicates=2))
    real = int((rows["sequence_ids"] > 0).sum())
    row, slot = np.nonzero(rows["masked_labels"] != -100)
    labels, after = rows["masked_labels"][row, slot], rows["input_ids"][row, rows["masked_positions"][row, slot]]
    total = len(labels)
    assert total / real == pytest.approx(0.15, abs=0.003)
    for share, expected in (((after == MASK).mean(), 0.8), ((after == labels).mean(), 0.1)):
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / total) + 0.001


def test_rows_are_the_same_bytes_whatever_the_number_of_processes_and_of_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_DOCUMENTS", 40)
    texts = [*random_texts(230), "", " \n ", "\u200b", None]
    whole = folder_bytes(make(tmp_path / "one", texts, duplicates=2, workers=1))
    assert set(whole) == {"manifest.json", "rows-00000.arrow"}
    assert whole == folder_bytes(make(tmp_path / "two", texts, duplicates=2, workers=2))
    corpus, rows = write_corpus(tmp_path / "corpus", texts, rows_per_group=7), tmp_path / "three"
    made = write_pretrain_rows(pretrain_params(duplicates=2), "phase1", corpus, tmp_path / "one/tokenizer", rows, 1)
    assert whole == folder_bytes(rows)
    assert (made.counts["documents"], made.counts["skipped"]) == (234, 4), "documents without tokens"


def test_duplicates_phases_and_seeds_give_other_pairs_and_masks(tmp_path):
    texts = random_texts(60)
    plain = read_rows(make(tmp_path, texts))["input_ids"]
    twice = read_rows(make(tmp_path, texts, duplicates=2))["input_ids"]
    assert twice[: len(plain)].tolist() == plain.tolist()
    second = {row.tobytes() for row in twice[len(plain) :]}
    assert len(second & {row.tobytes() for row in plain}) < 3
    for changed in ({"phase": "phase2"}, {"seed": 4}):
        other = read_rows(make(tmp_path, texts, **changed))["input_ids"]
        assert len({row.tobytes() for row in other} & {row.tobytes() for row in plain}) < 3
    again = read_rows(make(tmp_path, texts))["input_ids"]
    assert again.tolist() == plain.tolist()


def test_text_without_full_stops_is_kept(tmp_path):
    words = [word for text in random_texts(200) for word in text.lower().replace(".", "").split()]
    folder = make(tmp_path, [" ".join(words[:3000]), " ".join(words[3000:6000])], short_sequence_probability=0.0)
    seen = [(len(first), label) for first, _, label in pairs_in(read_rows(folder))]
    assert sum(length for length, _ in seen) > 2500  # first segments alone; a plain cut would keep 60 tokens
    assert {label for _, label in seen} == {0, 1}


def test_special_tokens_in_the_text_are_ordinary_characters(tmp_path):
    texts = ["Ba [SEP] de [CLS] fi [MASK] go [PAD] ba. Lu ka." for _ in range(30)]
    rows = read_rows(make(tmp_path, texts))
    assert len(list(pairs_in(rows))) >= 30  # which requires two [SEP] and no label below 5
    assert not ((rows["input_ids"] == PAD) & (rows["sequence_ids"] > 0)).any()


def test_inputs_that_rows_cannot_be_made_of_are_refused_before_anything_is_written(tmp_path):
    corpus, tokenizer = write_corpus(tmp_path / "corpus", ["Ba de. Fi go."]), word_tokenizer(tmp_path / "tokenizer")
    rows, part = tmp_path / "out" / "rows", tmp_path / "corpus/part-00000.parquet"

    def refuse(message, corpus=corpus, tokenizer=tokenizer, **params):
        with pytest.raises(InputError, match=message):
            write_pretrain_rows(pretrain_params(**params), "phase1", corpus, tokenizer, rows, 1)

    refuse("dvc repro corpus", corpus=tmp_path / "none")
    refuse("dvc repro tokenizer", tokenizer=tmp_path / "none")
    refuse("has no mask_token", tokenizer=save_tokenizer(tmp_path / "lacking", [*SPECIAL[:4], "ba"]))
    refuse("max_predictions_per_row=2", max_predictions_per_row=2)
    pq.write_table(pa.table({"words": ["a"]}), part)
    refuse("columns words but not text")
    part.write_bytes(b"PAR1 is how it begins, and then it is damaged")
    refuse("cannot be read as Parquet")
    assert not rows.parent.exists()


def test_a_corpus_without_any_token_is_refused_and_leaves_the_old_rows(tmp_path):
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


def test_memory_does_not_grow_with_the_corpus(tmp_path):
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


def test_pairs_with_four_special_tokens_fit_their_rows(tmp_path):
    corpus, tokenizer = write_corpus(tmp_path / "corpus", random_texts(30)), save_fast_tokenizer("roberta", tmp_path)
    made = write_pretrain_rows(pretrain_params(64), "phase1", corpus, tokenizer, tmp_path / "rows", 1)
    ends = (read_rows(tmp_path / "rows")["input_ids"] == load_tokenizer(tokenizer).token_to_id("</s>")).sum()
    assert ends == 3 * made.manifest.sequences, "two between the texts and one at the end"
