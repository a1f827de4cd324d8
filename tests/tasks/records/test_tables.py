"""Tables of every ending: separators, names of columns, JSON lists, headers without rows, and quotes that stay open."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.records import text_files
from tasks.records.interpretation import BLANK_LINES, Interpretation
from tasks.records.json_files import read_objects
from tasks.records.tables import ColumnSpec, RecordSpec, TableForm, list_empty, open_file
from tasks.records.text_files import file_suffix
from tasks.stage.errors import InputError

COLUMNS = {"text": ColumnSpec(("text",), "KEY.text"), "label": ColumnSpec(("label",), "KEY.label")}
ROWS = [{"text": "good, really", "label": "1"}, {"text": "bad; very", "label": "0"}]
ALL: list[Any] = []
"""Layouts of a table of which every column is read."""


def put(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def read_lines(
    path: Path,
    layouts: Any = (COLUMNS,),
    reading: Interpretation | None = None,
    form: TableForm | None = None,
    **more: Any,
) -> list[Any]:
    spec = RecordSpec("rows", list(layouts), [file_suffix(path)], **more)
    return list(open_file(path, "SECTION.path", spec, reading or Interpretation(), form or TableForm()).rows)


def read(path: Path, *how: Any, **more: Any) -> list[dict[str, Any]]:
    return [line.values for line in read_lines(path, *how, **more)]


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ('text,label\n"good, really",1\nbad; very,0\n', "commas"),
        ('text;label\ngood, really;1\n"bad; very";0\n', "semicolons"),
        ("text\tlabel\ngood, really\t1\nbad; very\t0\n", "tabs"),
        ('label;text\r\n1;good, really\n0;"bad; very"', "semicolons"),
        ('sep=;\ntext;label\ngood, really;1\n"bad; very";0\n', "semicolons (first line: sep=;)"),
        ('"sep=|"\r\ntext|label\r\ngood, really|1\r\nbad; very|0\r\n', "'|' (first line: sep=|)"),
    ],
)
def test_the_separator_of_a_csv_file_is_found_and_said(tmp_path: Path, text: str, separator: str) -> None:
    reading = Interpretation()
    assert read(put(tmp_path / "a.csv", text), reading=reading) == ROWS
    assert list(reading.formats) == [f"CSV, UTF-8, fields separated by {separator}"]
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert read(tmp_path / "b.csv.gz") == ROWS


@pytest.mark.parametrize(
    ("text", "separator", "row"),
    [
        ("text,label;x\na,b;c\n", None, {"text": "a", "label;x": "b;c"}),
        ("text,label;x\na,b;c\n", ";", {"text,label": "a,b", "x": "c"}),
        ("text|label\na|1\n", "|", {"text": "a", "label": "1"}),
        ("text|label\na|1\n", "pipe", {"text": "a", "label": "1"}),
        ("text;label\na;1\n", "semicolon", {"text": "a", "label": "1"}),
        ("text\tlabel\na\t1\n", "tab", {"text": "a", "label": "1"}),
        ("text,label\na,1\n", "comma", {"text": "a", "label": "1"}),
        ("text#label\na#1\n", "#", {"text": "a", "label": "1"}),
    ],
)
def test_a_comma_counts_where_it_fits_and_a_stated_separator_always(
    tmp_path: Path, text: str, separator: str | None, row: dict[str, str]
) -> None:
    assert read(put(tmp_path / "a.csv", text), ALL, form=TableForm(separator)) == [row]


def test_a_column_that_is_asked_for_may_have_separators_in_its_name(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "text;label\na;1\n")
    assert read(path, [{"all": ColumnSpec(("text;label",), "KEY")}]) == [{"all": "a;1"}]


@pytest.mark.parametrize(
    ("text", "layouts", "message"),
    [
        ("text;label\na;1\nb;0;more\n", ALL, "line 3 has 3 fields, but the header has 2"),
        ("sep=;\ntext;label\na;1\nb;0;more\n", ALL, "line 4 has 3 fields, but the header has 2"),
        ("It was good,1\nIt was bad,0\n", [COLUMNS], "no column 'text' .*header"),
        ("review,stars\nIt was bad,0\n", [COLUMNS], r"Set KEY.text, KEY.label$"),
        ('id,text\n1,"never closed\n2,fine\n3,fine\n', ALL, "line 2: the quote before 'never closed' is not closed"),
        ('id,text\n1,a\n2,"ok\nok"\n3,"never\n4,"fine"\n5,x\n', ALL, "line 5: the quote before 'never' .*line 6: "),
        ('id,text\n1,"a\n2,"\n3,"b ""c"",\nd\n', ALL, 'line 4: the quote before \'b ""c"",\' is not closed'),
        ('id;text\n1;"never closed\n2;fine\n3;fine\n', ALL, "line 2: the quote before 'never closed'"),
        ('id,text\n1,5" pipe\n2,"open\n', ALL, "line 3: the quote before 'open'"),
        ('"id,text\n1,a\n', ALL, "line 1: the quote before 'id,text'"),
        ('id,text\n1,"a" b\n', ALL, "line 2 is not valid CSV: "),
        ('id,text\n1,"a\n2,b\n3,c",d\n', ALL, r"line 4 has 3 fields, .*the row begins in line 2: is a quote"),
    ],
)
def test_a_damaged_csv_file_is_refused_with_its_line(tmp_path: Path, text: str, layouts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(put(tmp_path / "a.csv", text), layouts)


def test_a_row_that_is_too_long_says_where_its_quote_opens(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tasks.records.csv_files.MAX_LINE_BYTES", 1000)
    path = put(tmp_path / "a.csv", 'id,text\n1,a\n2,"open\n' + "3,x\n" * 500)
    with pytest.raises(InputError, match="line 3: a quote opens"):
        read(path, ALL)


def write_as(path: Path, columns: list[str], *rows: list[str]) -> Path:
    """Rows of texts in the format of the ending."""
    objects = [dict(zip(columns, row, strict=True)) for row in rows]
    if path.suffix == ".parquet":
        arrays = [pa.array(cells) for cells in zip(*rows, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, columns), path)
    elif path.suffix == ".jsonl":
        put(path, "".join(json.dumps(row) + "\n" for row in objects))
    elif path.suffix == ".json":
        put(path, json.dumps(objects))
    else:
        sign = "\t" if path.suffix == ".tsv" else ","
        put(path, "\n".join(sign.join(line) for line in [columns, *rows]) + "\n")
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.parquet"])
def test_a_column_whose_name_differs_in_case_or_blanks_is_taken_and_said(tmp_path: Path, name: str) -> None:
    reading = Interpretation()
    [row] = read(write_as(tmp_path / name, ["Text ", "LABEL", "other"], ["a", "1", "x"]), reading=reading)
    assert {key: row[key] for key in ("text", "label")} == {"text": "a", "label": "1"}
    assert reading.columns == {"text": "'Text ' (by name)", "label": "'LABEL' (by name)"}
    assert reading.unused_columns == {"other"}
    path = write_as(tmp_path / name, ["Text", "TEXT", "label"], ["a", "b", "1"])
    with pytest.raises(InputError, match="'text'; its columns are Text, TEXT"):
        read(path)
    reading = Interpretation()
    [row] = read(write_as(tmp_path / name, ["text", "label", "Text"], ["a", "1", "b"]), reading=reading)
    assert (row["text"], reading.columns["text"], reading.unused_columns) == ("a", "'text' (by name)", {"Text"})


QUOTED_TSV = "TSV with quoted cells, UTF-8, fields separated by tabs"
LITERAL_TSV = "TSV, UTF-8, fields separated by tabs"


@pytest.mark.parametrize(
    ("rows", "expected", "form"),
    [
        ('"good ""very"""\t1\nbad\t0', ['good "very"', "bad"], QUOTED_TSV),
        ('"good\tvery"\t1\nbad\t0', ["good\tvery", "bad"], QUOTED_TSV),
        ('"good\nvery"\t1\r\nbad\t0', ["good\nvery", "bad"], QUOTED_TSV),
        ('"good" very\t1\nbad\t0', ['"good" very', "bad"], LITERAL_TSV),
        ("\"good 's\t1\nbad\t0", ["\"good 's", "bad"], LITERAL_TSV),
        ('"good\t1\nbad"\t0\nso "so"\t1', ['"good', 'bad"', 'so "so"'], LITERAL_TSV),
        ('"good\t1\nbad"\t0', ['"good', 'bad"'], LITERAL_TSV),
        ('"good"\t1\n5" bad\t0', ['"good"', '5" bad'], LITERAL_TSV),
        ('good "very"\t1', ['good "very"'], LITERAL_TSV),
    ],
)
def test_quotes_enclose_tsv_cells_where_they_show_it(tmp_path: Path, rows: str, expected: list[str], form: str) -> None:
    reading = Interpretation()
    texts = [row["text"] for row in read(put(tmp_path / "a.tsv", f"text\tlabel\n{rows}\n"), reading=reading)]
    assert (texts, list(reading.formats)) == (expected, [form])


@pytest.mark.parametrize("rows", ['"good"\t1', '"good ""very"""\t1\n5" bad\t0'])
def test_quotes_in_a_tsv_file_that_fit_both_readings_are_refused_unless_stated(tmp_path: Path, rows: str) -> None:
    path, cell = put(tmp_path / "a.tsv", f"text\tlabel\n{rows}\n"), rows.partition("\t")[0]
    with pytest.raises(InputError, match=r"line 2 has the cell '.good.*SECTION.quoting to enclosing or literal"):
        read(path)
    enclosing, literal = (read(path, form=TableForm(quoting=how))[0]["text"] for how in ("enclosing", "literal"))
    assert (literal, enclosing[:1]) == (cell, "g")
    unused = put(tmp_path / "b.tsv", 'text\tlabel\tmore\ngood\t1\t"x"\n')
    assert read(unused) == [{"text": "good", "label": "1"}], "an unused column decides nothing"
    assert read(path, headers=[("text", "label")])[0]["text"] == cell, "GLUE's own format"


def test_quotes_of_a_csv_file_are_literal_if_stated(tmp_path: Path) -> None:
    path, reading = put(tmp_path / "a.csv", 'text,label\n"good,1\n'), Interpretation()
    assert read(path, reading=reading, form=TableForm(None, "literal")) == [{"text": '"good', "label": "1"}]
    assert list(reading.formats) == ["CSV with literal quotes, UTF-8, fields separated by commas"]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_only_a_repeated_column_that_is_used_is_refused(tmp_path: Path, name: str) -> None:
    cells = ["good", "1", "", ""]
    for others, unused in (["", ""], {"(no name)"}), (["x", "x"], {"x"}):
        reading = Interpretation()
        path = write_as(tmp_path / name, ["text", "label", *others], cells)
        assert read(path, reading=reading) == [{"text": "good", "label": "1"}]
        assert reading.unused_columns == unused
    with pytest.raises(InputError, match="'text' more than once"):
        read(write_as(tmp_path / name, ["text", "label", "text", ""], cells))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_texts_of_every_arrow_type_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    columns = {name: pa.array([row[name] for row in ROWS]).cast(kind) for name in COLUMNS}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert pq.read_schema(tmp_path / "a.parquet").field("text").type == kind
    assert read(tmp_path / "a.parquet") == ROWS


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_c1_control_characters_are_refused_or_kept_and_counted(tmp_path: Path, name: str) -> None:
    path = write_as(tmp_path / name, ["text", "label"], ["so\x85", "0"], ["\x93good\x94 Ã‰", "1"])
    for controls in ("refuse", "keep", None):
        reading, spec = Interpretation(), RecordSpec("rows", [COLUMNS], [path.suffix])
        records = open_file(path, "SECTION.path", spec, reading, TableForm(control_characters=controls))
        assert [row.values["text"] for row in records.rows] == ["so\x85", "\x93good\x94 Ã‰"]
        assert (records.problems.count > 0, reading.counts.total() > 0) == (controls == "refuse", controls == "keep")
        if controls == "refuse":
            with pytest.raises(InputError, match=r"control_characters=keep\): (line|row|record) \d, text \('U\+0093"):
                records.problems.refuse()


@pytest.mark.parametrize("blank", [",", " ,", ",,,"])
def test_a_row_of_empty_cells_is_a_blank_line(tmp_path: Path, blank: str) -> None:
    table = put(tmp_path / "a.csv", f"text,label\na,1\n{blank}\n,2\n{blank}\n")
    lines = read_lines(table, reading=(reading := Interpretation()))
    assert [line.values for line in lines] == [{"text": "a", "label": "1"}, {"text": "", "label": "2"}]
    assert (reading.counts[BLANK_LINES], lines[1].where) == (2, "line 4")


def test_a_list_of_objects_and_lines_of_objects_are_read_under_json(tmp_path: Path, monkeypatch: Any) -> None:
    rows = [{"text": f'{{[é, "{number}\n', "label": number, "more": [{"a": None}]} for number in range(50)]
    monkeypatch.setitem(COLUMNS, "more", ColumnSpec(("more",), "KEY.more"))
    for size in (7, 1 << 20):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", size)
        for text in (json.dumps(rows), "\ufeff \n" + json.dumps(rows, indent=1, ensure_ascii=False) + "\n \n"):
            assert read(put(tmp_path / "a.json", text)) == rows
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert read(put(tmp_path / "a.json", f"\n{lines}"), reading=(reading := Interpretation())) == rows
    assert reading.counts[BLANK_LINES] == 1
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    assert read(tmp_path / "b.json.gz") == rows


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("a.json", '{"version": "1", "data": [{"text": 1}, {"text": 2}], "more": {"x": [1]}}', ["data[0]", "data[1]"]),
        ("a.json", '{"more": {"x": [1]}, "data": [{"text": 1}, {"text": 2}]}', ["data[0]", "data[1]"]),
        ("a.json", '{\n"text": 1}\n\n{"text":\n2}', ["line 1", "line 4"]),
        ("a.jsonl", '{"data": [1], "text": 1}\n{"data": [2], "text": 2}\n', ["line 1", "line 2"]),
        ("a.json", '{"data": []}', []),
    ],
)
def test_objects_of_json_are_read_with_their_place(tmp_path: Path, name: str, text: str, places: list[str]) -> None:
    objects = list(read_objects(put(tmp_path / name, text), "KEY", Interpretation()))
    assert [where for where, _ in objects] == places
    assert [values["text"] for _, values in objects] == [1, 2][: len(places)]


def test_an_object_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.records.json_files.MAX_LINE_BYTES", 1 << 20)
    path = put(tmp_path / "a.json", '[{"text": "a"}, {"text": "' + "x" * (3 << 20) + '"}]')
    with pytest.raises(InputError, match=r"record 1 \(line 1\) is longer"):
        list(read_objects(path, "KEY", Interpretation()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"text": "a", "label": 1},\n{"text": "b", "label": }]', r"record 1 \(line 2\) is not JSON"),
        ('[{"text": "a", "label": 1}\n {"text": "b", "label": 2}]', r"record 1 \(line 1\) is not JSON \(expecting ','"),
        ('[{"text": "a", "label": 1}', "record 1 .* is not JSON"),
        ('[{"text": "a", "label": 1}] x', "record 1 .* is not JSON"),
        ('[{"text": "a", "text": "b"}]', "record 0 .*the key 'text' occurs twice"),
        ('["a"]', "record 0 is str; a list of objects"),
        ('{"data": [{"text": "a", "label": 1}], "test": [{"text": "b"}]}', "in \"data\" and in 'test': keep"),
        ('{"train": [{"text": "a"}], "data": [{"text": "b"}]}', "in \"data\" and in 'train': keep"),
        ('{\n "data": x\n}', r"line 1 is not JSON \(Expecting value in line 2: 'x"),
        ("[" * 100_000, "record 0 .* cannot be read"),
        ('[{"text": "\udcff"}]', "is not UTF-8: found byte 0xff"),
    ],
)
def test_other_json_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=message):
        read(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.tsv"])
def test_a_table_without_rows_is_named(tmp_path: Path, name: str) -> None:
    reading, texts = Interpretation(), {"a.csv": "text,label\n\n", "a.tsv": "text\tlabel\n"}
    if name in texts:
        put(tmp_path / name, texts[name])
    else:
        pq.write_table(pa.table({column: pa.array([], pa.string()) for column in COLUMNS}), tmp_path / name)
    assert read(tmp_path / name, reading=reading) == []
    assert list_empty(reading) == f" ({name} has a header and no rows)"
    assert list_empty(Interpretation()) == ""
