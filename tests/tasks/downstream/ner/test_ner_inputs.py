"""Sentences from every layout, in every scheme; what is refused by line, and what is repaired and counted."""

import json
import re
import subprocess
from collections import Counter

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.examples import make_examples
from tasks.downstream.inference.job import UNKNOWN_TO_MODEL
from tasks.downstream.ner.checks import NerData
from tasks.downstream.ner.conll import COMMENTS, HEADER, NO_WORD, RANGES
from tasks.downstream.ner.examples import UNKNOWN
from tasks.downstream.ner.params import NerDataParams
from tasks.downstream.ner.sentences import EMPTY, REPAIRED, TagStatistics, open_sentences, read_sentences
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.records.interpretation import Interpretation, read_reading
from tasks.records.labels import read_example_labels, write_labels
from tasks.records.tags import find_inside_starts, find_problem
from tasks.stage.errors import InputError, PodiumError
from tasks.validation.checks import format_failures
from tests.fuzzing import damaged_bytes, damaged_json, require_clean
from tests.places import SHARED
from tests.tasks.downstream.entries import part_of, values_with
from tests.tasks.validation.validation_data import validate

REAL = SHARED / "data" / "ner"
CONLL, CSV, JSONL, PARQUET = "train.conll", "train.csv", "train.jsonl", "train.parquet"


def put(folder, content, name=CONLL):
    """A file of this text or of these records."""
    path = folder / name
    if isinstance(content, list) and path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
        return path
    text = "\n".join(map(json.dumps, content)) if isinstance(content, list) else content
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def read(path, reading=None, **values):
    """Document, words and tags of each sentence."""
    params = NerDataParams(train_path=str(path), dev_path="x", **values)
    reading = reading or Interpretation()
    records = open_sentences(params, "downstream.ner.data", "train", reading)
    return [tuple(sentence[:3]) for sentence in read_sentences(records, params, TagStatistics(), reading)]


def part(name, **data):
    return part_of(find_entry(validate_params(values_with({"ner": {"kind": "ner", "data": data}})), "ner"), name)


def make(folder, train, dev, **values):
    folder.mkdir(exist_ok=True)
    paths = {"train_path": str(put(folder, train)), "dev_path": str(put(folder, dev, "dev.conll"))}
    make_examples(part("reader", **paths, **values), folder / "examples")
    return read_reading(folder / "examples")["numbers"]


ADA = (0, ["Ada", "left"], ["B-person", "O"])
KAGGLE = "Sentence #,Word,POS,Tag\nSentence: 1,Ada,NNP,B-person\n,left,VB,O\nSentence: 2,Ada,NNP,B-person\n,left,VB,O\n"
IDS = "sentence_id,words,labels\n0,Ada,B-person\n0,left,O\n1,Ada,B-person\n1,left,O\n"
LISTS = [{"tokens": ["-DOCSTART-"], "ner_tags": ["O"]}, {"tokens": ADA[1], "ner_tags": ADA[2]}]
OTHER_NAMES = [{"words": record["tokens"], "tags": record["ner_tags"], "id": 1} for record in LISTS]
ROWS = [{"sentence_idx": n, "word": word, "tag": tag} for n in (7, 8) for word, tag in zip(*ADA[1:], strict=True)]


SAME = [
    (CONLL, "Ada\tB-person\nleft\tO\n"),
    (CONLL, "Ada B-person\nleft O"),
    (CONLL, "Ada NNP I-NP B-person\nleft VBD I-VP O\n\n\n"),
    (CONLL, "\ufeffAda\tB-person\r\nleft\tO\r\n"),
    (CONLL, "Ada\tB-person\rleft\tO\r"),
    (CONLL, "# sent_id = 1\n# text = Ada left\nAda\tB-person\nleft\tO\n"),
    (CONLL, "-DOCSTART- -X- O O\n\nAda NNP I-NP B-person\nleft VBD I-VP O\n"),
    (CONLL, "-DOCSTART- -X- O\nAda -X- _ B-person\nleft -X- _ O\n\n"),  # Label Studio
    (CONLL, "# id 5239d808-f300-46ea-aa3b-5093040213a3\tdomain=en\nAda _ _ B-person\nleft _ _ O\n"),  # MultiCoNER
    (JSONL, LISTS),
    (JSONL, [{"tokens": [], "ner_tags": []}, LISTS[1]]),
    (PARQUET, OTHER_NAMES),
    ("train.json", json.dumps(OTHER_NAMES[1])),
    (CSV, '"tokens","ner_tags"\n"[""Ada"", ""left""]","[""B-person"", ""O""]"\n'),
    (CSV, "tokens,tags\nAda left,B-person O\n"),
    (CSV, "Tokens;Tags\nAda left;B-person O\n"),
]
WORDS = [
    ("#\tO\nAda\tB-person\n#\tO\n\n#NFL\tO\n", [(0, ["#", "Ada", "#"]), (0, ["#NFL"])]),
    ("New York\tB-location\n", [(0, ["New York"])]),
    ("a\u00a0b O\n", [(0, ["a\u00a0b"])]),
    ("a, O\n", [(0, ["a,"])]),
    ("a B-x\n\u200b\nb O\n \ufeff\u200b\nc O\n", [(0, ["a"]), (0, ["b"]), (0, ["c"])]),  # as WNUT-17 has them
    ("-DOCSTART- O\n\na O\n\nb O\n \t\n-DOCSTART- O\n\nc O\n-DOCSTART- O\n-DOCSTART- O\nd O\n",
     [(0, ["a"]), (0, ["b"]), (1, ["c"]), (2, ["d"])]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "sentences"), [*((*row, [ADA[:2]]) for row in SAME), *((CONLL, *row) for row in WORDS)]
)
def test_every_form_of_a_sentence_is_read_alike_and_words_are_kept(tmp_path, name, content, sentences):
    """A document begins at -DOCSTART-, a sentence after a blank line."""
    read_back = read(put(tmp_path, content, name), reading := Interpretation())
    assert [sentence[:2] for sentence in read_back] == sentences
    assert (name, content) not in SAME or read_back == [ADA]
    assert (reading.unused_columns, reading.counts[EMPTY]) == (set(), int("[]" in json.dumps(content)))


@pytest.mark.parametrize("source", ["files", "hub"])
def test_tags_may_be_numbers_of_classes(tmp_path, source):
    names = datasets.List(datasets.ClassLabel(names=["O", "B-person"]))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": names})
    numbers = {"tokens": [ADA[1]], "ner_tags": [[1, 0]]}
    datasets.Dataset.from_dict(numbers, features=features).to_parquet(str(tmp_path / PARQUET))
    assert read(tmp_path / PARQUET, source=source, dataset=str(tmp_path) if source == "hub" else None) == [ADA]


@pytest.mark.parametrize(
    ("tags", "scheme_stated", "scheme", "read_as", "repaired"),
    [
        ("I-x I-x B-x|O I-y", "auto", "IOB1", "B-x I-x B-x|O B-y", 2),
        ("B-x I-x|B-y", "auto", "IOB2", "B-x I-x|B-y", 0),
        ("B-x O I-x", "auto", "IOB1 and IOB2 mixed", "B-x O B-x", 1),
        ("I-x I-x B-x", "iob1", "IOB1", "B-x I-x B-x", 1),
        ("B-a I-a E-a S-a S-a O B-b E-b B-b E-b", "auto", "BIOES", "B-a I-a I-a B-a B-a O B-b I-b B-b I-b", 0),
        ("B-a I-a L-a U-a U-a O B-b L-b B-b L-b", "auto", "BILOU", "B-a I-a I-a B-a B-a O B-b I-b B-b I-b", 0),
        ("B-a M-a E-a S-a S-a O B-b E-b B-b E-b", "auto", "BMES", "B-a I-a I-a B-a B-a O B-b I-b B-b I-b", 0),
        ("O E-x S-x I-x E-y", "auto", "BIOES", "O B-x B-x B-x B-y", 2),
    ],
)
def test_every_scheme_becomes_iob2(tmp_path, tags, scheme_stated, scheme, read_as, repaired):
    path = put(tmp_path, "\n".join("".join(f"w {tag}\n" for tag in sentence.split()) for sentence in tags.split("|")))
    read_back = read(path, reading := Interpretation(), tag_scheme=scheme_stated)
    assert [" ".join(sentence[2]) for sentence in read_back] == read_as.split("|")
    assert reading.labels.partition(", ")[0] == f"tags in {scheme}"
    assert reading.counts[REPAIRED] == repaired


TWO = "a O\n" * 2
REFUSED = {
    CONLL: [
        ("a B-\nb B\nc O\n", r"2 problems:\n  a tag without a type: line 1 \('B-'\), line 2 \('B'\)$"),
        ("a O\nb I-x\n\nc B-x\nd I-y\n", r"IOB2.*: line 2 \('I-x'\), line 5 \('I-y'\)"),
        ("a X O\nb O\nc X X O\n", r"other than 3 columns.*: line 2 \('b O'\), line 3 \('c X X O'\)"),
        ("a\tO\n\tB-x\n", r"an empty word: line 2 \(''\)"),
        ("Ada\tB-person\n\n# O\n", "one column.*: line 3"),
        ("a\tO\nb\t\n", r"not O .*--column tags=1 .*: line 2 \(''\)"),
        ("a B-x\nb I-x|B-y\nc O\n", r"several tags in one .*: line 2 \('I-x\|B-y'\)"),
        ("a, B-x\nb, O\n", "commas between its columns"),
        ("a O\n# b c\nd O\n", r"other than 2 columns.*: line 2"),  # a comment is only before a sentence
        ("a S-x\nb E-x\n", r"BIOES.*: line 1 \('S-x'\), line 2 \('E-x'\)"),
        ("a U-x\nb O\n", "supported only by tag_scheme: auto"),
        ("\n \n-DOCSTART- O\n", "contains no sentence"),
        ("a" * 200_000, "line 1 has 200,000 characters"),
        ("a O\n" * 50_001, "line 1 has more than 50,000 words"),
        ("1 Ada B-x\n2 left O\n", "too short to tell.*--column tokens=1.*--column tokens=2"),
        ("1 Ada B-x\n2 a O\n\n1 b O\n2 c O\n1 d O\n", r"starts again .*: line 6 \('1'\)"),
        ("1 Ada B-x\n2 a O\n\n1 b O\n2-3 c B-x\n2 d O\n3 d O\n", r"multiword token .*: line 5 \('B-x'\)"),
        ("1\tO\n2\tB-x\n3\tO\n\n" * 10, "words that are their own number .*tokens=NAME"),
        ("Ada B-x\nleft O\n" * 101, "a single sentence of 202 words"),
        ("sentence_id\tword\ttag\n1\ta\tO\n", r"a column of sentences, 'sentence_id'.*\.tsv"),
    ],
    JSONL: [
        ([{"tokens": ["a", "b"], "ner_tags": ["O"]}], r"numbers of tags and words: line 1 \('2 words, 1 tags'\)"),
        ([{"tokens": ["a", 3], "ner_tags": ["O", "O"]}], r"a word is not text: line 1, word 1 \(3\)"),
        ([{"tokens": ["a"], "ner_tags": [0]}], r"numbers without names .*: line 1 \(0\)"),
        ([{"tokens": "a b", "ner_tags": ["O"]}], r"not lists: line 1 \('a b'\)"),
        ([LISTS[1], {"tokens": ["a"]}], "'ner_tags'.*downstream.ner.data.columns.tags .*--column tags=NAME"),
    ],
    CSV: [
        (IDS + "0,Ada,B-person\n", r"comes back .*'sentence_id'.*--column document=NAME.*: line 6 \('0'\)"),
        (IDS + ",left,O\n", "a row without 'sentence_id', although .*: line 6"),
        (IDS + "2,a b,O O\n", r"several words.*: line 6 \('a b'\)"),
        (IDS + "2,a,3\n", r"does not begin with B- or I- .*: line 6 \('3'\)"),
        ("tokens,tags\n\"['Ada', 'left']\",\"['B-person', 'O']\"\n", "lists that are not JSON .*: line 2"),
    ],
    **{
        name: [(TWO, r"train_path needs .*\.conll.*\.jsonl")] for name in ("a.xlsx", "a.conll.bz2", "a.parquet.gz", "a")
    },
}


@pytest.mark.parametrize(
    ("name", "content", "message"), [(name, *case) for name, cases in REFUSED.items() for case in cases], ids=repr
)
def test_what_cannot_be_meant_is_refused_with_its_place(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message) as refused:
        read(put(tmp_path, content, name), tag_scheme="iob2")
    assert name in str(refused.value)


BY_NUMBER = "a row with 'Sentence #' begins a sentence"
DOCUMENTS = "nr,sentence_id,words,labels\n5,0,Ada,B-person\n5,0,left,O\n5,1,left,O\n6,0,Ada,B-person\n6,0,left,O\n"


@pytest.mark.parametrize(
    ("name", "content", "columns", "sentences", "grouping"),
    [
        (CSV, KAGGLE, {}, [ADA, ADA], BY_NUMBER),
        (CSV, IDS, {}, [ADA, ADA], "rows of one 'sentence_id' are a sentence"),
        (CSV, IDS.replace("sentence_id", "nr"), {"sentence": "nr"}, [ADA, ADA], "rows of one 'nr' are a sentence"),
        (JSONL, ROWS, {}, [ADA, ADA], "rows of one 'sentence_idx' are a sentence"),
        (CSV, "sentence_id,tokens,tags\n1,Ada left,B-person O\n1,Ada left,B-person O\n", {}, [ADA, ADA],
         "a row is a sentence"),
        (CSV, DOCUMENTS, {"document": "nr"}, [ADA, (0, ["left"], ["O"]), (1, *ADA[1:])], None),
    ],
)  # fmt: skip
def test_rows_of_one_word_become_sentences(tmp_path, name, content, columns, sentences, grouping):
    path, reading = put(tmp_path, content, name), Interpretation()
    assert read(path, reading, columns=columns) == sentences
    assert grouping in (None, reading.grouping)
    assert ("sentence_id" in reading.unused_columns) == (grouping == "a row is a sentence")
    assert grouping is None or "'" not in grouping or grouping.split("'")[1] in reading.columns["sentence"]


@pytest.mark.parametrize("name", [CSV, JSONL])
def test_single_words_are_sentences_and_running_numbers_words_only_where_the_user_says_so(tmp_path, name):
    rows = [{"word": "Ada", "tag": "B-person"}, {"word": "left", "tag": "O"}] * 6
    lines = "\n".join(["word,tag", *(",".join(row.values()) for row in rows)])
    path = put(tmp_path, lines if name == CSV else rows, name)
    with pytest.raises(InputError, match="one word in most sentences.*--column sentence=row"):
        read(path)
    assert read(path, columns={"sentence": "row"})[:2] == [(0, ["Ada"], ["B-person"]), (0, ["left"], ["O"])]
    numbers = put(tmp_path, "1 X O\n2 X B-x\n\n" * 12)
    assert read(numbers, columns={"tokens": "1"})[0] == (0, ["1", "2"], ["O", "B-x"])


EMPTY_NODES = "# text = vitamin B\n1-2\tAdaleft\t_\t-\n1\tAda\tB-person\t-\n1.1\t_\t_\t-\n2\tleft\tO\t-\n\n"
NUMBERED = {"tokens": "2", "word number": "1", "tags": "3"}


@pytest.mark.parametrize(
    ("text", "columns", "expected", "counts"),
    [
        ("# newdoc\n1\tAda\tB-person\n2\tleft\tO\n\n" * 2, {}, NUMBERED, {COMMENTS: (2, "line 1")}),
        (EMPTY_NODES * 2, {}, NUMBERED, {COMMENTS: (2, "line 1"), RANGES: (4, "line 2")}),
        ("1 Ada B-person\n2 left O\n", {"tokens": "2"}, NUMBERED, {}),
        ("Ada B-person B-place\nleft O O\n", {"tags": "2"}, {"tokens": "1", "tags": "2"}, {}),
        ("O Ada B-person\nO left O\n", {"tokens": "2"}, {"tokens": "2", "tags": "3"}, {}),
        ("word\ttag\tpos\nAda\tB-person\tX\nleft\tO\tY\n", {}, {"tokens": "word", "tags": "tag"},
         {HEADER: (1, "line 1")}),
        ("Ada\tB-person\n\tO\nleft\tO\n\n \tO\n\n", {}, {"tokens": "1", "tags": "2"}, {NO_WORD: (2, "line 2")}),
    ],
)  # fmt: skip
def test_columns_are_found_or_named_and_lines_that_are_no_words_are_counted(tmp_path, text, columns, expected, counts):
    sentences = read(put(tmp_path, text), reading := Interpretation(), columns=columns)
    assert sentences == [ADA] * len(sentences)
    names = {part: name.partition(" (")[0].strip("'").removeprefix("column ") for part, name in reading.columns.items()}
    assert names == expected
    assert {what: (reading.counts[what], reading.places[what]) for what in counts} == counts


def test_of_two_columns_of_entity_tags_the_user_names_one(tmp_path):
    """GermEval has nested entities in a column of their own; CoNLL-2003 has chunks."""
    nested = "#\thttp://x.org/a [2009-10-17]\n1\tDan\tB-PER\tO\n2\tat\tO\tO\n3\tBern\tO\tB-LOC\n\n" * 3
    path = put(tmp_path, nested)
    for columns, message in (({}, "columns 3 and 4 .*--column tags=3.*tags=4"), ({"tags": "5"}, "no column 5")):
        with pytest.raises(InputError, match=message):
            read(path, columns=columns)
    assert read(path, columns={"tags": "3"}) == [(0, ["Dan", "at", "Bern"], ["B-PER", "O", "O"])] * 3
    assert read(path, columns={"tags": "4"})[0][2] == ["O", "O", "B-LOC"]
    chunks = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\ncall NN I-NP O\n. . O O\n\n" * 3
    assert read(put(tmp_path, chunks))[0][2] == ["B-ORG", "O", "B-MISC", "O", "O"]


@pytest.mark.parametrize("other", ["Per", "PE\u00a0R"])
def test_types_that_fold_together_are_refused_folded_or_kept(tmp_path, other):
    text = f"Ada B-PER\nKerr I-PER\nleft O\n\nBen B-{other}\nKerr I-PER\nleft O\n"
    dev = f"Ada B-{other}\nleft O\n"
    paths = {"train_path": str(put(tmp_path, text)), "dev_path": str(put(tmp_path, dev, "dev.conll"))}
    for look in (lambda task: task.check_files(), lambda task: make_examples(task, tmp_path / "examples")):
        with pytest.raises(InputError, match=r"differ only .*'PER' \(train, line 1\) and .*train, line 5.*=fold"):
            look(part("reader", **paths))
    part("reader", **paths, similar_labels="fold").check_files()
    numbers = make(tmp_path, text, dev, similar_labels="fold")
    assert read_example_labels(tmp_path / "examples", "x") == ("O", "B-PER", "I-PER")
    table = pq.read_table(tmp_path / "examples" / PARQUET)
    assert table["tags"].to_pylist() == [["B-PER", "I-PER", "O"]] * 2, "an entity of two spellings is one"
    assert numbers[f"tags of type {other!r} read as 'PER'"] == 2
    make(tmp_path / "keep", text, dev, similar_labels="keep")
    assert len(read_example_labels(tmp_path / "keep" / "examples", "x")) == 5


def test_tags_with_the_prefix_at_the_end_are_read_after_the_command_of_the_message(tmp_path):
    path = put(tmp_path, "Ada person-B\nleft O\n")
    with pytest.raises(InputError, match=r"prefix at the end .*: line 1 \('person-B'\)") as refused:
        read(path)
    [pattern] = re.findall("sed -E '(.*)' FILE", str(refused.value))
    assert read(put(tmp_path, subprocess.check_output(["sed", "-E", pattern, path], text=True))) == [ADA]


def test_types_of_a_file_to_evaluate_are_folded_into_those_of_the_model(tmp_path):
    write_labels(tmp_path, ("O", "B-PER", "I-PER"))
    other = "Ada B-per\nKerr I-per\nleft O\n"
    for text, similar, tags, unknown in (
        (other, "fold", ["B-PER", "I-PER", "O"], 0),
        ("Ada B-per\nKerr B-PER\n", "keep", ["B-per", "B-PER"], 1),
    ):
        reading, dev = Interpretation(), tmp_path / "dev.parquet"
        part("inference", similar_labels=similar).write_labelled(put(tmp_path, text), dev, reading)
        assert pq.read_table(dev)["tags"].to_pylist() == [tags]
        assert reading.counts[UNKNOWN_TO_MODEL] == unknown
    with pytest.raises(InputError, match="has per, the model has PER: .*--similar-labels fold"):
        part("inference").write_labelled(put(tmp_path, other), dev, Interpretation())


@pytest.mark.parametrize(
    ("name", "text", "ids", "kept"),
    [
        (CSV, KAGGLE, ["Sentence: 1", "Sentence: 2"], {"Tag": ADA[2]}),
        (CSV, IDS, ["0", "1"], {"labels": ADA[2]}),
        (CSV, IDS.replace(",labels", "").replace(",B-person", "").replace(",O", ""), ["0", "1"], {}),
        (CONLL, "1\tAda\n2\tleft\n\n" * 2, ["line 1", "line 4"], {}),
    ],
)
def test_models_answer_sentences_of_the_same_forms(tmp_path, name, text, ids, kept):
    records = part("inference").read_unlabelled(put(tmp_path, text, name), Interpretation())
    assert [record["id"] for record in records] == ids
    assert all((record["tokens"], record["kept"]) == (ADA[1], kept) for record in records)


def test_types_come_from_train_and_others_of_dev_are_counted(tmp_path):
    numbers = make(tmp_path, "a B-b\n\nb I-a\nc I-a\n", "a B-a\nb B-z\nc I-z\nd B-z\n")
    assert read_example_labels(tmp_path / "examples", "x") == ("O", "B-a", "I-a", "B-b", "I-b")
    assert (numbers[UNKNOWN], numbers[REPAIRED]) == (2, 1)
    assert pq.read_table(tmp_path / "examples" / PARQUET)["tags"].to_pylist() == [["B-b"], ["B-a", "I-a"]]


def failed_checks(folder, **data):
    verdict = validate(NerData(part("entry", **data), folder))
    return Counter({check["name"]: check["failed"] for check in verdict["checks"] if not check["ok"]})


def test_plausibility_and_changed_examples_are_found_by_the_verdict(tmp_path):
    """Sentences of single words, numbers as words and similar types, which checks before a run did not read."""
    make(tmp_path, "a B-x\nb O\n\n" * 12, "a B-x\nb O\n")
    path = tmp_path / "examples" / PARQUET
    schema, plausible = pq.read_table(path).schema, {"columns": {"sentence": "row", "tokens": "1"}}
    plausible |= {"similar_labels": "keep", "min_examples": 1}
    single, changed = (
        ([["1"]] * 12, [["B-x"], ["B-X"]] * 6),
        ([["a"], ["b", "c"], ["d", "e"]], [["X"], ["B-x", "I-b"], ["B-x"]]),
    )
    for (words, tags), data, failed in (
        (single, {"min_examples": 1}, {"train_single_words": 12, "train_running_numbers": 12, "types_differ": 1}),
        (single, plausible, {}),
        (changed, {"min_examples": 1, "max_common_share": 1},
         {"a_tag_each": 1, "tags_known": 1, "entities_begin_with_b": 1}),
    ):  # fmt: skip
        columns = [[0] * len(words), words, tags, ["x"] * len(words)]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
        assert failed_checks(path.parent, **data).keys() == failed.keys()


@pytest.mark.skipif(not REAL.is_dir(), reason=f"needs the public development data in {REAL}")
def test_real_sentences_are_judged_valid_and_counted(tmp_path):
    """WNUT-17 as published: 3,394 sentences with 1,975 entities, 1,009 with 836 (Derczynski et al. 2017, table 3)."""
    files = {f"{split}_path": str(REAL / f"wnut17-{split}.conll") for split in ("train", "dev")}
    make_examples(part("reader", **files), tmp_path / "ner")
    verdict = validate(NerData(part("entry", **files, min_examples=500), tmp_path / "ner"))
    assert verdict["valid"], format_failures(verdict, "page")
    numbers = {figure["name"]: figure["value"] for figure in verdict["statistics"]["numbers"]}
    assert [numbers[f"train {what}"] for what in ("sentences", "words", "entities")] == [3394, 62730, 1975]
    assert [numbers[f"dev {what}"] for what in ("sentences", "words", "entities")] == [1009, 15733, 836]
    assert numbers["dev entities of type creative-work"] == 105
    assert failed_checks(tmp_path / "ner", **files, min_examples=2000).keys() == {"dev_sentences"}


RECORD = {"tokens": ["Ada", "of", "New", "Yörk"], "ner_tags": ["B-person", "O", "B-place", "I-place"]}
SENTENCE = "".join(f"{word} X {tag}\n" for word, tag in zip(*RECORD.values(), strict=True))
DAMAGED = {
    CONLL: damaged_bytes(("-DOCSTART- O\n\n# x = y\n" + f"{SENTENCE}\n" * 3).encode(), 150),
    JSONL: damaged_json(RECORD, 150),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_end_in_sentences_or_in_one_clear_error(tmp_path, name):
    path = tmp_path / name

    def look():
        for _, words, tags in read(path):
            assert len(words) == len(tags) > 0
            assert not any(map(find_problem, tags))
            assert not find_inside_starts(tags)

    for what, data in DAMAGED[name]:
        path.write_bytes(data)
        require_clean(look, f"{name}, {what}", PodiumError)
