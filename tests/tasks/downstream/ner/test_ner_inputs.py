"""Sentences from every layout, in either scheme; what is refused by line, and what is repaired and counted."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.examples import make_examples
from tasks.downstream.inference.job import UNKNOWN_TO_MODEL
from tasks.downstream.ner.checks import NerData
from tasks.downstream.ner.conll import COMMENTS, HEADER, NO_WORD, RANGES
from tasks.downstream.ner.examples import UNKNOWN
from tasks.downstream.ner.inference import NerInference
from tasks.downstream.ner.params import NerColumnParams, NerDataParams
from tasks.downstream.ner.sentences import EMPTY, REPAIRED, TagStatistics, open_sentences, read_sentences
from tasks.downstream.reading import Reader
from tasks.params.entries import find_entry
from tasks.params.overlays import read_base, resolve
from tasks.params.schema import validate_params
from tasks.records.interpretation import Interpretation, read_reading
from tasks.records.labels import read_example_labels, write_labels
from tasks.stage.errors import InputError, ParamsError
from tasks.validation.checks import format_failures
from tests.places import ROOT, SHARED
from tests.tasks.downstream.entries import part_of, values_with
from tests.tasks.validation.validation_data import validate

SECTION = "downstream.ner.data"
REAL = SHARED / "data" / "ner"


def read(path: Path, reading: Interpretation | None = None, **values: Any) -> list[tuple[int, list[str], list[str]]]:
    params = NerDataParams(train_path=str(path), dev_path="x", **values)
    reading = reading or Interpretation()
    records = open_sentences(params, SECTION, "train", reading)
    return [tuple(one[:3]) for one in read_sentences(records, params, TagStatistics(), reading)]


def put(folder: Path, text: str, name: str = "train.conll") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


ADA = (0, ["Ada", "left"], ["B-person", "O"])


@pytest.mark.parametrize(
    "text",
    [
        "Ada\tB-person\nleft\tO\n",
        "Ada B-person\nleft O",
        "\n\n  Ada  NNP   B-person \nleft VBD O\n\n",
        "Ada NNP I-NP B-person\nleft VBD I-VP O\n\n\n",
        "\ufeffAda\tB-person\r\nleft\tO\r\n",
        "Ada\tB-person\rleft\tO\r",
        "# sent_id = 1\n# text = Ada left\nAda\tB-person\nleft\tO\n",
        "# id 71 domain=train\nAda _ _ B-person\nleft _ _ O\n",
        "-DOCSTART- -X- O O\n\nAda NNP I-NP B-person\nleft VBD I-VP O\n",
        "-DOCSTART-\nAda\tB-person\nleft\tO\n",
        "-DOCSTART- -X- O\nAda -X- _ B-person\nleft -X- _ O\n\n",  # Label Studio
        "# id 5239d808-f300-46ea-aa3b-5093040213a3\tdomain=en\nAda _ _ B-person\nleft _ _ O\n",  # MultiCoNER
        "Ada\tB-person\r\nleft\tO\n\r\n",  # lines that end in two ways
    ],
)
def test_columns_are_read_with_the_word_first_and_its_tag_last(tmp_path: Path, text: str) -> None:
    assert read(put(tmp_path, text)) == [ADA]


def test_a_document_begins_at_docstart_and_a_sentence_after_a_blank_line(tmp_path: Path) -> None:
    text = "-DOCSTART- O\n\na O\n\nb O\n \t\n-DOCSTART- O\n\nc O\n-DOCSTART- O\n-DOCSTART- O\nd O\n"
    assert [(document, *words) for document, words, _ in read(put(tmp_path, text))] == [
        (0, "a"),
        (0, "b"),
        (1, "c"),
        (2, "d"),
    ]


def test_a_number_sign_is_a_word_where_it_has_a_tag(tmp_path: Path) -> None:
    for apart in "\t ":
        text = f"#{apart}O\nAda{apart}B-person\n#{apart}O\n\n#NFL{apart}O\n"
        assert [words for _, words, _ in read(put(tmp_path, text))] == [["#", "Ada", "#"], ["#NFL"]]
    with pytest.raises(InputError, match=r"without a type: line 1 \('B'\)"):
        read(put(tmp_path, "# B\nAda B-person\n"))
    with pytest.raises(InputError, match="one column.*: line 3"):
        read(put(tmp_path, "Ada\tB-person\n\n# O\n"))


def test_words_may_hold_blanks_where_tabs_part_the_columns(tmp_path: Path) -> None:
    assert read(put(tmp_path, "New York\tB-location\n")) == [(0, ["New York"], ["B-location"])]
    assert read(put(tmp_path, "a\u00a0b O\n"))[0][1] == ["a\u00a0b"]


def tables(folder: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    """Two sentences, one of them of -DOCSTART- before, as JSON lines, Parquet, and Parquet of class numbers."""
    rows = {"tokens": [["-DOCSTART-"], ["Ada", "left"]], "ner_tags": [["O"], ["B-person", "O"]]}
    if kind == "jsonl":
        lines = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
        return put(folder, "\n".join(map(json.dumps, lines)), "train.jsonl"), {}
    if kind == "other names":
        table = pa.table({"words": rows["tokens"], "tags": rows["ner_tags"], "id": [1, 2]})
        pq.write_table(table, folder / "train.parquet")
        return folder / "train.parquet", {"columns": NerColumnParams(tokens="words", tags="tags")}
    names = datasets.ClassLabel(names=["O", "B-person"])
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(names)})
    numbers = {**rows, "ner_tags": [[0], [1, 0]]}
    datasets.Dataset.from_dict(numbers, features=features).to_parquet(str(folder / "train.parquet"))
    if kind == "hub":
        return folder / "x", {"source": "hub", "dataset": str(folder)}
    return folder / "train.parquet", {}


@pytest.mark.parametrize("kind", ["jsonl", "other names", "class numbers", "hub"])
def test_tables_of_words_and_tags_are_read(tmp_path: Path, kind: str) -> None:
    path, values = tables(tmp_path, kind)
    reading = Interpretation()
    assert read(path, reading, **values) == [ADA]
    assert reading.unused_columns == set()


@pytest.mark.parametrize(
    ("text", "scheme", "said", "repaired"),
    [
        ("a I-x\nb I-x\nc B-x\n\nd O\ne I-y\n", "auto", "tags in IOB1", 2),
        ("a B-x\nb I-x\n\nd B-y\n", "auto", "tags in IOB2", 0),
        ("a B-x\nb O\nc I-x\n", "auto", "tags in IOB1 and IOB2 mixed", 1),
        ("a I-x\nb I-x\nc B-x\n", "iob1", "tags in IOB1", 1),
        ("a O\n", "auto", "tags in IOB2", 0),
    ],
)
def test_the_scheme_is_found_and_iob1_becomes_iob2(
    tmp_path: Path, text: str, scheme: str, said: str, repaired: int
) -> None:
    reading = Interpretation()
    sentences = read(put(tmp_path, text), reading, tag_scheme=scheme)
    assert reading.labels.partition(", ")[0] == said
    assert reading.counts[REPAIRED] == repaired
    for _, _, tags in sentences:
        assert not any(
            tag.startswith("I-") and before[2:] != tag[2:] for before, tag in zip(["O", *tags], tags, strict=False)
        )


def test_a_line_of_zero_width_characters_ends_a_sentence(tmp_path: Path) -> None:
    """WNUT-17 and files that were joined have some."""
    sentences = read(put(tmp_path, "a B-x\n\u200b\nb O\n \ufeff\u200b\nc O\n"))
    assert [words for _, words, _ in sentences] == [["a"], ["b"], ["c"]]


BAD = {
    "a tag without a type": (
        "a B-\nb B\nc O\n",
        r"2 problems:\n  a tag without a type: line 1 \('B-'\), line 2 \('B'\)$",
    ),
    "I- after O": ("a O\nb I-x\n\nc B-x\nd I-y\n", r"IOB2 does not allow .*: line 2 \('I-x'\), line 5 \('I-y'\)"),
    "one column": ("a O\nb\nc O\n", r"one column .*: line 2 \('b'\)"),
    "ragged": ("a X O\nb O\nc X X O\n", r"other than 3 columns.*: line 2 \('b O'\), line 3 \('c X X O'\)"),
    "an empty word": ("a\tO\n\tB-x\n", r"an empty word: line 2 \(''\)"),
    "lines after a bad one": ("a O\nb\nc Q\n", r"line 2 \('b'\)\n  a tag that is .*: line 3 \('Q'\)"),
    "a bare sign": ("# \nb O\n", r"one column .*: line 1 \('# '\)"),
    "no tag": ("a\tO\nb\t\n", r"not O and does not begin with B- or I- .*--column tags=1 .*: line 2 \(''\)"),
    "nested": ("a B-x\nb I-x|B-y\nc O\n", r"several tags in one .*: line 2 \('I-x\|B-y'\)"),
    "commas": ("a, B-x\nb, O\n\nc, O\n", "has commas between its columns: replace them by tabs"),
    "a prefix at the end": ("a per-B\nb O\n", r"prefix at the end \(write PER-B as B-PER; .*: line 1 \('per-B'\)"),
    "nested with O": ("a B-x+O\nb O\n", r"several tags in one .*: line 1 \('B-x\+O'\)"),
    "another scheme": ("a S-x\nb E-x\n", r"BIOES.*: line 1 \('S-x'\), line 2 \('E-x'\)"),
    "a handful of many": ("a Q\n" * 9, r"line 1 \('Q'\), .*line 5 \('Q'\) and 4 more$"),
    "not UTF-8": ("a O\nb\udcff O\n", r"not UTF-8: found byte 0xff at offset 5 \(line 2\)"),
    "no sentence": ("\n \n-DOCSTART- O\n", "contains no sentence"),
    "nothing": ("", "is empty"),
    "a comment alone": ("# x = y\n", "contains no sentence"),
    "a line without end": ("a" * 200_000, "line 1 has 200,000 characters"),
    "no blank line": ("a O\n" * 50_001, "the sentence from line 1 has more than 50,000 words"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_columns_are_refused_with_their_lines(tmp_path: Path, name: str) -> None:
    text, said = BAD[name]
    with pytest.raises(InputError, match=said) as refused:
        read(put(tmp_path, text), tag_scheme="iob2")
    assert "train.conll" in str(refused.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, r"numbers of tags and words: line 2 \('2 words, 1 tags'\)"),
        ({"tokens": ["a", ""], "ner_tags": ["O", "O"]}, r"an empty word: line 2, word 1 \(''\)"),
        ({"tokens": ["a", 3], "ner_tags": ["O", "O"]}, r"a word is not text: line 2, word 1 \(3\)"),
        ({"tokens": ["a"], "ner_tags": [None]}, r"a tag that is not text: line 2, word 0"),
        ({"tokens": ["a"], "ner_tags": [0]}, r"numbers without names .*: line 2 \(0\)"),
        ({"tokens": "a b", "ner_tags": ["O"]}, r"not lists: line 2 \('a b'\)"),
        ({"tokens": None, "ner_tags": None}, "not lists: line 2"),
        ({"tokens": ["a"] * 50_001, "ner_tags": ["O"] * 50_001}, "more than 50,000 words: line 2"),
        ({"tokens": ["\ud800"], "ner_tags": ["O"]}, "half a surrogate pair.*: line 2, word 0"),
        ({"tokens": ["a"]}, "has no column 'ner_tags'.*Set downstream.ner.data.columns.tags .*--column tags=NAME"),
    ],
)
def test_bad_records_are_refused_with_their_lines(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    good = {"tokens": ["a"], "ner_tags": ["O"]}
    path = put(tmp_path, f"{json.dumps(good)}\n{json.dumps(row)}\n", "train.jsonl")
    with pytest.raises(InputError, match=said):
        read(path)


NESTED = "#\thttp://x.org/a [2009-10-17]\n1\tDan\tB-PER\tO\n2\tat\tO\tO\n3\tBern\tO\tB-LOC\n\n" * 3
DAN = (0, ["Dan", "at", "Bern"], ["B-PER", "O", "O"])
KAGGLE = "Sentence #,Word,POS,Tag\nSentence: 1,Ada,NNP,B-person\n,left,VB,O\nSentence: 2,Ada,NNP,B-person\n,left,VB,O\n"
IDS = "sentence_id,words,labels\n0,Ada,B-person\n0,left,O\n1,Ada,B-person\n1,left,O\n"
RECORDS = [
    {"sentence_idx": number, "word": word, "tag": tag}
    for number in (7, 8)
    for word, tag in (("Ada", "B-person"), ("left", "O"))
]


@pytest.mark.parametrize(
    ("name", "text", "column", "grouping"),
    [
        ("train.csv", KAGGLE, "'Sentence #' (by name)", "a row with 'Sentence #' begins a sentence"),
        ("train.tsv", KAGGLE.replace(",", "\t"), "'Sentence #' (by name)", "a row with 'Sentence #' begins a sentence"),
        ("train.csv", IDS, "'sentence_id' (by name)", "rows of one 'sentence_id' are a sentence"),
        ("train.csv", IDS.replace("sentence_id", "nr"), "'nr' (named by you)", "rows of one 'nr' are a sentence"),
        (
            "train.jsonl",
            "\n".join(map(json.dumps, RECORDS)),
            "'sentence_idx' (by name)",
            "rows of one 'sentence_idx' are a sentence",
        ),
        ("train.parquet", "", "'sentence_idx' (by name)", "rows of one 'sentence_idx' are a sentence"),
    ],
)
def test_rows_of_one_word_become_sentences(tmp_path: Path, name: str, text: str, column: str, grouping: str) -> None:
    path, reading = put(tmp_path, text, name), Interpretation()
    if not text:
        pq.write_table(pa.Table.from_pylist(RECORDS), path)
    assert read(path, reading, columns={"sentence": "nr"} if "'nr'" in column else {}) == [ADA, ADA]
    assert (reading.columns["sentence"], reading.grouping) == (column, grouping)


def test_sentences_that_are_numbered_in_each_document_are_told_apart(tmp_path: Path) -> None:
    text = "nr,sentence_id,words,labels\n5,0,Ada,B-person\n5,0,left,O\n5,1,left,O\n6,0,Ada,B-person\n6,0,left,O\n"
    with pytest.raises(InputError, match=r"comes back after another one .*--column document=NAME.*: line 5 \('0'\)"):
        read(put(tmp_path, text, "train.csv"))
    found = read(put(tmp_path, text, "train.csv"), columns={"document": "nr"})
    assert found == [ADA, (0, ["left"], ["O"]), (1, *ADA[1:])]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (IDS + "0,Ada,B-person\n", r"comes back after another one \(sort the rows by 'sentence_id'.*: line 6 \('0'\)"),
        (IDS + ",left,O\n", "a row without 'sentence_id', although others repeat it .*: line 6"),
        (IDS.replace("\n0,", "\n,", 1), "a row without 'sentence_id' before the first sentence: line 2"),
        (IDS + "2,a b,O O\n", r"several words, where other rows have one word each: line 6 \('a b'\)"),
        (IDS + "2,a,3\n", r"does not begin with B- or I- .*: line 6 \('3'\)"),
    ],
)
def test_rows_of_one_word_with_two_readings_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(put(tmp_path, text, "train.csv"))


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl"])
def test_single_words_without_a_column_of_sentences_are_refused_unless_they_are_sentences(
    tmp_path: Path, name: str
) -> None:
    rows = [{"word": "Ada", "tag": "B-person"}, {"word": "left", "tag": "O"}] * 6
    lines = ["word,tag", *(",".join(row.values()) for row in rows)] if ".csv" in name else map(json.dumps, rows)
    path = put(tmp_path, "\n".join(lines), name)
    with pytest.raises(InputError, match="one word in most sentences.*sentence=NAME.*--column sentence=row"):
        read(path)
    assert read(path, columns={"sentence": "row"})[:2] == [(0, ["Ada"], ["B-person"]), (0, ["left"], ["O"])]


def test_a_sentence_column_of_rows_that_are_sentences_is_not_used(tmp_path: Path) -> None:
    text = "sentence_id,tokens,tags\n1,Ada left,B-person O\n1,Ada left,B-person O\n"
    assert read(put(tmp_path, text, "train.csv"), reading := Interpretation()) == [ADA, ADA]
    assert (reading.grouping, reading.unused_columns) == ("a row is a sentence", {"sentence_id"})


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("# sent_id = 0\n1\tAda\tB-person\n2\tleft\tO\n\n" * 2, {}, {"tokens": 2, "word number": 1, "tags": 3}),
        (
            "# text = vitamin B\n1-2\tAdaleft\t_\t-\n1\tAda\tB-person\t-\n1.1\t_\t_\t-\n2\tleft\tO\t-\n\n" * 2,
            {},
            {"tokens": 2, "word number": 1, "tags": 3},
        ),
        ("1 Ada B-person\n2 left O\n", {"tokens": "2"}, {"tokens": 2, "word number": 1, "tags": 3}),
        ("Ada B-person B-place\nleft O O\n", {"tags": "2"}, {"tokens": 1, "tags": 2}),
        ("O Ada B-person\nO left O\n", {"tokens": "2"}, {"tokens": 2, "tags": 3}),
        ("word\ttag\tpos\nAda\tB-person\tX\nleft\tO\tY\n", {}, {"tokens": "word", "tags": "tag"}),
    ],
)
def test_the_columns_of_conll_files_are_found_or_named(
    tmp_path: Path, text: str, columns: dict[str, str], expected: dict[str, Any]
) -> None:
    sentences = read(put(tmp_path, text), reading := Interpretation(), columns=columns)
    assert sentences == [ADA] * len(sentences)
    names = {part: name.partition(" (")[0].strip("'").removeprefix("column ") for part, name in reading.columns.items()}
    assert names == {part: str(column) for part, column in expected.items()}


def test_lines_that_are_no_words_are_counted_with_the_first(tmp_path: Path) -> None:
    text = "# newdoc\n1-2\tAdaleft\t_\n1\tAda\tB-person\n2\tleft\tO\n\n" * 2
    assert read(put(tmp_path, text), reading := Interpretation()) == [ADA, ADA]
    assert (reading.counts[COMMENTS], reading.counts[RANGES]) == (2, 2)
    assert (reading.places[COMMENTS], reading.places[RANGES]) == ("line 1", "line 2")
    read(put(tmp_path, "word tag\nAda B-person\n"), reading := Interpretation())
    assert (reading.counts[HEADER], reading.places[HEADER]) == (1, "line 1")


def test_of_two_columns_of_entity_tags_the_user_names_one(tmp_path: Path) -> None:
    """GermEval has nested entities in a column of their own; CoNLL-2003 has chunks."""
    with pytest.raises(InputError, match="columns 3 and 4 all have tags .*--column tags=3.*--column tags=4"):
        read(put(tmp_path, NESTED))
    assert read(put(tmp_path, NESTED), columns={"tags": "3"}) == [DAN] * 3
    assert read(put(tmp_path, NESTED), columns={"tags": "4"}) == [(0, DAN[1], ["O", "O", "B-LOC"])] * 3
    with pytest.raises(InputError, match="4 columns, there is no column 5"):
        read(put(tmp_path, NESTED), columns={"tags": "5"})
    chunks = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\ncall NN I-NP O\n. . O O\n\n" * 3
    assert read(put(tmp_path, chunks))[0][2] == ["B-ORG", "O", "B-MISC", "O", "O"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 Ada B-x\n2 left O\n", "the file is too short to tell.*--column tokens=1.*--column tokens=2"),
        ("1 Ada B-x\n2 a O\n\n1 b O\n2 c O\n1 d O\n", r"starts again without a blank line before: line 6 \('1'\)"),
        ("1 Ada B-x\n2 a O\n\n1 b O\n2-3 c B-x\n2 d O\n3 d O\n", r"a tag at a multiword token .*: line 5 \('B-x'\)"),
        ("1\tO\n2\tB-x\n3\tO\n\n" * 10, "words that are their own number .*tokens=NAME"),
        ("Ada B-x\nleft O\n" * 101, "a single sentence of 202 words. End each sentence with a blank line"),
        ("sentence_id\tword\ttag\n1\ta\tO\n", r"a column of sentences, 'sentence_id'. Give it the suffix \.tsv"),
    ],
)
def test_columns_of_conll_files_with_two_readings_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(put(tmp_path, text))


def test_running_numbers_are_words_where_the_user_says_so(tmp_path: Path) -> None:
    path = put(tmp_path, "1 X O\n2 X B-x\n\n" * 12)
    assert read(path, columns={"tokens": "1"})[0] == (0, ["1", "2"], ["O", "B-x"])


SPELLINGS = "Ada B-PER\nKerr I-PER\nleft O\n\nBen B-Per\nKerr I-PER\nleft O\n"


@pytest.mark.parametrize("other", ["Per", "PE\u00a0R"])
def test_types_that_fold_together_are_refused_folded_or_kept(tmp_path: Path, other: str) -> None:
    text, dev = SPELLINGS.replace("Per", other), f"Ada B-{other}\nleft O\n"
    for look in (lambda task: task.check_files(), lambda task: make_examples(task, tmp_path / "examples")):
        params = NerDataParams(train_path=str(put(tmp_path, text)), dev_path=str(put(tmp_path, dev, "dev.conll")))
        with pytest.raises(InputError, match=r"differ only .*'PER' \(train, line 1\) and .*train, line 5.*=fold"):
            look(task_of(params))
    task_of(params.model_copy(update={"similar_labels": "fold"})).check_files()
    numbers = make(tmp_path, text, dev, similar_labels="fold")
    assert read_example_labels(tmp_path / "examples", "x") == ("O", "B-PER", "I-PER")
    table = pq.read_table(tmp_path / "examples" / "train.parquet")
    assert table["tags"].to_pylist() == [["B-PER", "I-PER", "O"]] * 2, "an entity of two spellings is one"
    assert numbers[f"tags of type {other!r} read as 'PER'"] == 2
    make(tmp_path / "keep", text, dev, similar_labels="keep")
    assert len(read_example_labels(tmp_path / "keep" / "examples", "x")) == 5


def test_tags_with_the_prefix_at_the_end_are_read_after_the_command_of_the_message(tmp_path: Path) -> None:
    path = put(tmp_path, "Ada person-B\nleft O\n")
    with pytest.raises(InputError, match="prefix at the end") as refused:
        read(path)
    [pattern] = re.findall("sed -E '(.*)' FILE", str(refused.value))
    assert read(put(tmp_path, subprocess.check_output(["sed", "-E", pattern, path], text=True))) == [ADA]


def test_types_of_a_file_to_evaluate_are_folded_into_those_of_the_model(tmp_path: Path) -> None:
    write_labels(tmp_path, ("O", "B-PER", "I-PER"))
    path = put(tmp_path, "Ada B-per\nKerr I-per\nleft O\n")

    def write(**values: Any) -> Any:
        entry = find_entry(validate_params(values_with({"ner": {"kind": "ner", "data": values}})), "ner")
        reading, task = Interpretation(), part_of(entry, "inference")
        task.write_labelled(path, tmp_path / "dev.parquet", reading)
        return reading, pq.read_table(tmp_path / "dev.parquet")["tags"].to_pylist()

    with pytest.raises(InputError, match="has per, the model has PER: .*--similar-labels fold"):
        write()
    reading, tags = write(similar_labels="fold")
    assert (tags, reading.counts[UNKNOWN_TO_MODEL]) == ([["B-PER", "I-PER", "O"]], 0)
    path = put(tmp_path, "Ada B-per\nKerr B-PER\n")
    reading, _ = write(similar_labels="keep")
    assert reading.counts[UNKNOWN_TO_MODEL] == 1


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("x.csv", KAGGLE, ["Sentence: 1", "Sentence: 2"]),
        ("x.csv", IDS, ["0", "1"]),
        ("x.csv", IDS.replace(",labels", "").replace(",B-person", "").replace(",O", ""), ["0", "1"]),
        ("x.conll", "1\tAda\tB-person\n2\tleft\tO\n\n" * 2, ["line 1", "line 4"]),
        ("x.conll", "1\tAda\n2\tleft\n\n" * 2, ["line 1", "line 4"]),
    ],
)
def test_models_answer_sentences_of_the_same_forms(tmp_path: Path, name: str, text: str, ids: list[str]) -> None:
    values = values_with({"ner": {"kind": "ner", "data": NerDataParams().model_dump()}})
    task: NerInference = part_of(find_entry(validate_params(values), "ner"), "inference")
    found = [*task.read_unlabelled(put(tmp_path, text, name), Interpretation())]
    assert [(one["id"], one["tokens"]) for one in found] == [(id, ADA[1]) for id in ids]
    labels = {"Tag" if text == KAGGLE else "labels": ADA[2]} if text in (KAGGLE, IDS) else {}
    assert [one["kept"] for one in found] == [labels] * 2


def test_plausibility_is_checked_as_expectations(tmp_path: Path) -> None:
    """Sentences of single words, numbers as words and similar types, which checks before a run did not read."""
    make(tmp_path, "a B-x\nb O\n\n" * 12, "a B-x\nb O\n")
    path = tmp_path / "examples" / "train.parquet"
    table = pq.read_table(path)
    words = pa.array([["1"]] * 12, table.schema.field("tokens").type)
    tags = pa.array([["B-x"], ["B-X"]] * 6, table.schema.field("tags").type)
    values = [table["document"], words, tags, table["id"]]
    pq.write_table(pa.Table.from_arrays(values, schema=table.schema), path)

    def find_failed(**values: Any) -> set[str]:
        examples = NerData(task_of(NerDataParams(min_examples=1, **values)).entry, tmp_path / "examples")
        return {check["name"] for check in validate(examples)["checks"] if not check["ok"]}

    assert find_failed() == {"train_single_words", "train_running_numbers", "types_differ"}
    assert find_failed(columns={"sentence": "row", "tokens": "1"}, similar_labels="keep") == set()


@pytest.mark.parametrize("name", ["train.xlsx", "train.conll.bz2", "train.parquet.gz", "train"])
def test_files_of_other_endings_are_refused_with_those_that_are_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"downstream.ner.data.train_path needs .*\.conll.*\.jsonl"):
        read(put(tmp_path, "a O\n", name))
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "other.conll")


def task_of(params: NerDataParams) -> Reader:
    """Reads what an entry `ner` with this section `data` names."""
    values = values_with({"ner": {"kind": "ner", "data": params.model_dump()}})
    found: Reader = part_of(find_entry(validate_params(values), "ner"), "reader")
    return found


def make(folder: Path, train: str, dev: str, **values: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    params = NerDataParams(train_path=str(put(folder, train)), dev_path=str(put(folder, dev, "dev.conll")), **values)
    make_examples(task_of(params), folder / "examples")
    return read_reading(folder / "examples")["numbers"]


def test_types_come_from_train_in_order_of_their_names_and_those_of_dev_alone_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = make(tmp_path, "a B-b\n\nb I-a\nc I-a\n", "a B-a\nb B-z\nc I-z\nd B-z\n")
    assert read_example_labels(tmp_path / "examples", "x") == ("O", "B-a", "I-a", "B-b", "I-b")
    assert numbers[UNKNOWN] == 2
    assert "note: 2 dev entities with types not in train" in capsys.readouterr().err, "on the terminal as well"
    assert numbers[REPAIRED] == 1
    table = pq.read_table(tmp_path / "examples" / "train.parquet")
    assert table["tags"].to_pylist() == [["B-b"], ["B-a", "I-a"]]


def test_nothing_is_written_where_something_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="have 0 entity types"):
        make(tmp_path, "a O\n", "a B-a\n")
    with pytest.raises(InputError, match=r"dev.conll \(downstream.ner.data.dev_path\)"):
        make(tmp_path, "a B-a\n", "a B\n")
    assert not (tmp_path / "examples").exists()


def test_empty_sentences_of_tables_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [{"tokens": [], "ner_tags": []}, {"tokens": ["Ada", "left"], "ner_tags": ["B-person", "O"]}]
    reading = Interpretation()
    assert read(put(tmp_path, "\n".join(map(json.dumps, rows)), "train.jsonl"), reading) == [ADA]
    assert reading.counts[EMPTY] == 1


TABLE = [{"tokens": ["Ada", "left"], "ner_tags": ["B-person", "O"]}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.json", json.dumps(TABLE)),
        ("train.json", json.dumps({"words": ["Ada", "left"], "tags": ["B-person", "O"]})),
        ("train.csv", '"tokens","ner_tags"\n"[""Ada"", ""left""]","[""B-person"", ""O""]"\n'),
        ("train.csv", "tokens,tags\nAda left,B-person O\n"),
        ("train.csv", "Tokens;Tags\nAda left;B-person O\n"),
    ],
)
def test_tables_of_words_and_tags_are_read_in_every_form(tmp_path: Path, name: str, text: str) -> None:
    assert read(put(tmp_path, text, name)) == [ADA]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens,tags\n\"['Ada', 'left']\",\"['B-person', 'O']\"\n", "lists that are not JSON .*: line 2"),
        ("tokens,tags\nAda left,O\n", r"different numbers of tags and words: line 2 \('2 words, 1 tags'\)"),
        ("tokens,tags\n", r"contains no sentence \(train\.csv has a header and no rows\)"),
        ("text,label\na,b\n", "has no column 'tokens'; its columns are text, label"),
    ],
)
def test_tables_of_other_lists_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(put(tmp_path, text, "train.csv"))


def test_lines_with_an_empty_word_tagged_o_are_dropped_and_counted(tmp_path: Path) -> None:
    reading = Interpretation()
    assert read(put(tmp_path, "Ada\tB-person\n\tO\nleft\tO\n\n \tO\n\n"), reading) == [ADA]
    assert reading.counts[NO_WORD] == 2
    with pytest.raises(InputError, match=r"an empty word: line 2"):
        read(put(tmp_path, "Ada\tB-person\n\tI-person\n"))


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("BIOES", "B-a I-a E-a S-a S-a O B-b E-b B-b E-b"),
        ("BILOU", "B-a I-a L-a U-a U-a O B-b L-b B-b L-b"),
        ("BMES", "B-a M-a E-a S-a S-a O B-b E-b B-b E-b"),
    ],
)
def test_schemes_that_mark_the_last_word_are_read_as_the_same_entities(tmp_path: Path, scheme: str, tags: str) -> None:
    path = put(tmp_path, "".join(f"w {tag}\n" for tag in tags.split()))
    [(_, _, found)] = read(path, reading := Interpretation())
    assert found == ["B-a", "I-a", "I-a", "B-a", "B-a", "O", "B-b", "I-b", "B-b", "I-b"]
    assert (reading.labels, reading.counts[REPAIRED]) == (f"tags in {scheme}, types: a, b", 0)
    for stated in ("iob1", "iob2"):
        with pytest.raises(InputError, match="supported only by tag_scheme: auto"):
            read(path, tag_scheme=stated)


def test_entities_of_other_schemes_that_do_not_begin_are_repaired_and_counted(tmp_path: Path) -> None:
    [(_, _, found)] = read(put(tmp_path, "a O\na E-x\na S-x\na I-x\na E-y\n"), reading := Interpretation())
    assert found == ["O", "B-x", "B-x", "B-x", "B-y"]
    assert reading.counts[REPAIRED] == 2
    with pytest.raises(InputError, match=r"a tag without a type: line 1"):
        read(put(tmp_path, "a S-\nb S-x\n"))


def test_given_dev_sentences_of_types_that_train_has_not_are_refused_before_the_first_stage(tmp_path: Path) -> None:
    train, dev = put(tmp_path, "a B-a\n"), put(tmp_path, "a B-b\nb B-c\n", "dev.conll")
    params = NerDataParams(train_path=str(train), dev_path=str(dev))
    for look in (task_of(params).check_files, lambda: make_examples(task_of(params), tmp_path / "examples")):
        with pytest.raises(
            InputError, match=r"no dev example has a class of the training examples: found b, c, training has a"
        ):
            look()


def test_real_sentences_are_judged_valid_and_counted(tmp_path: Path) -> None:
    """WNUT-17 as published: 3,394 sentences with 1,975 entities, 1,009 with 836 (Derczynski et al. 2017, table 3)."""
    if not REAL.is_dir():
        pytest.skip(f"needs the public development data in {REAL}")
    files = {"train_path": str(REAL / "wnut17-train.conll"), "dev_path": str(REAL / "wnut17-dev.conll")}
    params = NerDataParams(**files, min_examples=500)
    make_examples(task_of(params), tmp_path / "ner")
    verdict = validate(NerData(task_of(params).entry, tmp_path / "ner"))
    assert verdict["valid"], format_failures(verdict, "page")
    numbers = {one["name"]: one["value"] for one in verdict["statistics"]["numbers"]}
    assert [numbers[f"train {what}"] for what in ("sentences", "words", "entities")] == [3394, 62730, 1975]
    assert [numbers[f"dev {what}"] for what in ("sentences", "words", "entities")] == [1009, 15733, 836]
    assert numbers["dev entities of type creative-work"] == 105
    more = params.model_copy(update={"min_examples": 2000})
    few = validate(NerData(task_of(more).entry, tmp_path / "ner"))
    assert [check["name"] for check in few["checks"] if not check["ok"]] == ["dev_sentences"]


def test_examples_that_were_changed_are_found_by_their_verdict(tmp_path: Path) -> None:
    make(tmp_path, "a B-a\n\nb B-a\nc I-a\n\nd B-a\ne O\n", "a B-a\n")
    path = tmp_path / "examples" / "train.parquet"
    table = pq.read_table(path)
    tags = pa.array([["X"], ["B-a", "I-b"], ["B-a"]], table.schema.field("tags").type)
    pq.write_table(table.set_column(2, table.schema.field("tags"), tags), path)
    verdict = validate(NerData(task_of(NerDataParams(min_examples=1, max_common_share=1)).entry, tmp_path / "examples"))
    failed = Counter({check["name"]: check["failed"] for check in verdict["checks"] if not check["ok"]})
    assert failed == {"a_tag_each": 1, "tags_known": 1, "entities_begin_with_b": 1}


def of_entry(*overrides: str, preset: str | None = None) -> dict[str, Any]:
    """The parameters of a new entry with these overrides, or of the entry that a preset adds."""
    stated = [] if preset else ["downstream.names.kind=ner", *(f"downstream.names.{one}" for one in overrides)]
    values = resolve(read_base(preset, ROOT), preset, stated, ROOT / "presets")
    [entry] = [one for one in validate_params(values).downstream.values() if one.kind == "ner"]
    found: dict[str, Any] = entry.model_dump()
    return found


def test_defaults_are_those_that_bert_was_published_with() -> None:
    """Devlin et al. 2018, appendix A.3: batch 16, 5e-5, 4 epochs; decay and warm-up as in pre-training."""
    tuning = of_entry()["finetune"]
    assert (tuning["global_batch_size"], tuning["learning_rate"], tuning["epochs"]) == (16, 5e-5, 4)
    assert (tuning["warmup_fraction"], tuning["weight_decay"], tuning["max_grad_norm"]) == (0.1, 0.01, 1.0)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rows.overlap=64", r"at most half a window: \(row_length 128 - 2 special tokens\) / 2 = 63"),
        ("data.source=hub", "source: hub needs dataset"),
        ("data.tag_scheme=bioes", "'auto', 'iob1' or 'iob2'"),
        ("gate.min_f1=101", "less than or equal to 100"),
    ],
)
def test_parameters_that_cannot_be_are_refused(override: str, said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        of_entry(override)


def test_the_preset_is_the_recipe_of_run_ner_no_trainer() -> None:
    """README: --max_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3."""
    entry = of_entry(preset="ner-conll2003-cuda-base")
    tuning = entry["finetune"]
    assert (tuning["global_batch_size"], tuning["learning_rate"], tuning["epochs"]) == (32, 2e-5, 3)
    assert (tuning["warmup_fraction"], tuning["weight_decay"], tuning["max_grad_norm"]) == (0, 0, None)
    assert (entry["rows"]["row_length"], entry["rows"]["max_sequences_per_row"]) == (128, 1)
    assert entry["data"]["dataset"] == "tomaarsen/conll2003"
