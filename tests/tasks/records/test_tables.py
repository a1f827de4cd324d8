"""Tables of every ending: separators, names of columns, JSON lists, headers without rows, and quotes that stay open."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.params.overlays import read_base, resolve
from tasks.params.schema import validate_params
from tasks.records import text_files
from tasks.records.interpretation import BLANK_LINES, NUMERIC_IDS, Interpretation
from tasks.records.json_files import read_objects
from tasks.records.tables import ColumnSpec, RecordSpec, convert_id, list_empty, open_file
from tasks.records.text_files import file_suffix
from tasks.stage.errors import InputError, ParamsError
from tests.places import ROOT

COLUMNS = {"text": ColumnSpec(("text",), "KEY.text"), "label": ColumnSpec(("label",), "KEY.label")}
ROWS = [{"text": "good, really", "label": "1"}, {"text": "bad; very", "label": "0"}]


def put(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def read_table(path: Path, layouts: Any, reading: Interpretation, separator: str | None = None, **more: Any) -> Any:
    return open_file(path, "KEY", RecordSpec("rows", layouts, [file_suffix(path)], **more), reading, separator).rows


def read(path: Path, reading: Interpretation | None = None, **more: Any) -> list[dict[str, Any]]:
    return [line.values for line in read_table(path, [COLUMNS], reading or Interpretation(), **more)]


def column_names(path: Path, separator: str | None = None) -> list[str]:
    return list(next(read_table(path, [], Interpretation(), separator)).values)


@pytest.mark.parametrize(
    ("text", "remarks"),
    [
        ('text,label\n"good, really",1\nbad; very,0\n', []),
        ('text;label\ngood, really;1\n"bad; very";0\n', ["a.csv: fields are separated by semicolons"]),
        ("text\tlabel\ngood, really\t1\nbad; very\t0\n", ["a.csv: fields are separated by tabs"]),
        ('label;text\r\n1;good, really\r\n0;"bad; very"', ["a.csv: fields are separated by semicolons"]),
    ],
)
def test_the_separator_of_a_csv_file_is_found_and_said(tmp_path: Path, text: str, remarks: list[str]) -> None:
    reading = Interpretation()
    assert read(put(tmp_path / "a.csv", text), reading) == ROWS
    assert reading.remarks == remarks
    assert all(remark in reading.summary() for remark in remarks)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert read(tmp_path / "b.csv.gz") == ROWS
    assert sorted(column_names(tmp_path / "b.csv.gz")) == ["label", "text"]


def test_a_comma_counts_where_it_fits_and_a_stated_separator_always(tmp_path: Path) -> None:
    both = put(tmp_path / "a.csv", "text,label;x\na,b;c\nd,e;f\n")
    assert list(read_table(both, [], Interpretation()))[0].values == {"text": "a", "label;x": "b;c"}
    assert list(read_table(both, [], Interpretation(), ";"))[0].values == {"text,label": "a,b", "x": "c"}
    assert column_names(both, ";") == ["text,label", "x"]
    bars = put(tmp_path / "b.csv", "text|label\na|1\n")
    assert read(bars, separator="|") == [{"text": "a", "label": "1"}]
    single = put(tmp_path / "c.csv", "text;label\na;1\n")
    named = [
        line.values for line in read_table(single, [{"all": ColumnSpec(("text;label",), "KEY")}], Interpretation())
    ]
    assert named == [{"all": "a;1"}], "a column of that very name was asked for"
    tabs = put(tmp_path / "d.tsv", 'text\tlabel\n"a;\t1\n')
    assert read(tabs) == [{"text": '"a;', "label": "1"}], "quotes are letters in .tsv"


@pytest.mark.parametrize(
    ("word", "sign"), [("pipe", "|"), ("semicolon", ";"), ("tab", "\t"), ("comma", ","), ("#", "#")]
)
def test_a_separator_is_known_by_its_name_or_itself(tmp_path: Path, word: str, sign: str) -> None:
    path = put(tmp_path / "a.csv", f"text{sign}label\na{sign}1\n")
    [row] = read_table(path, [{"text": ColumnSpec(("text",), "KEY")}], Interpretation(), word)
    assert row.values == {"text": "a"}


def test_a_row_of_other_length_does_not_hide_the_separator_of_the_header(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "text;label\na;1\nb;0;more\n")
    with pytest.raises(InputError, match="line 3 has 3 fields, but the header has 2"):
        list(read_table(path, [], Interpretation()))


def test_separators_are_stated_by_words_or_signs() -> None:
    for word in ("semicolon", ";", "tab", "'|'", "pipe"):
        stated = f"corpus.separator={word}", f"downstream.squad.data.separator={word}"
        params = validate_params(resolve(read_base(None, ROOT), None, stated))
        assert params.corpus.separator == params.downstream["squad"].data.separator == word.strip("'")
    for word in ("ab", "'\"'", "a"):
        with pytest.raises(ParamsError, match="comma, semicolon, tab, pipe, or one character"):
            validate_params(resolve(read_base(None, ROOT), None, [f"corpus.separator={word}"]))


def write_as(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        put(path, "".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        put(path, json.dumps(rows))
    else:
        put(path, "\n".join(",".join(line) for line in [rows[0], *(row.values() for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.parquet"])
def test_a_column_whose_name_differs_in_case_or_blanks_is_taken_and_said(tmp_path: Path, name: str) -> None:
    reading = Interpretation()
    path = write_as(tmp_path / name, [{"Text ": "a", "LABEL": "1", "other": "x"}])
    [found] = read(path, reading)
    assert {key: found[key] for key in ("text", "label")} == {"text": "a", "label": "1"}
    assert [remark.partition(": ")[2] for remark in reading.remarks] == [
        "column 'Text ' is read as 'text'",
        "column 'LABEL' is read as 'label'",
    ]
    assert reading.unused_columns == {"other"}
    path = write_as(tmp_path / name, [{"Text": "a", "TEXT": "b", "label": "1"}])
    with pytest.raises(InputError, match="has no column 'text'; its columns are Text, TEXT, label"):
        read(path)
    reading, path = Interpretation(), write_as(tmp_path / name, [{"text": "a", "label": "1", "Text": "b"}])
    assert read(path, reading)[0]["text"] == "a"
    assert (reading.remarks, reading.unused_columns) == ([], {"Text"})


def test_what_is_not_required_is_taken_so_only_where_something_required_is(tmp_path: Path) -> None:
    columns = {"text": ColumnSpec(("text",), "KEY"), "title": ColumnSpec(("title",), "KEY", False)}
    for header, expected in (("text,Title", None), ("Text,Title", "t")):
        [line] = read_table(put(tmp_path / "a.csv", f"{header}\na,t\n"), [columns], Interpretation())
        assert line.values.get("title") == expected


def test_a_list_of_objects_and_lines_of_objects_are_read_under_json(tmp_path: Path, monkeypatch: Any) -> None:
    rows = [{"text": f'{{[é, "{number}\n', "label": number, "more": [{"a": None}]} for number in range(50)]
    monkeypatch.setitem(COLUMNS, "more", ColumnSpec(("more",), "KEY.more"))
    for size in (7, 1 << 20):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", size)
        for text in (json.dumps(rows), "\ufeff \n" + json.dumps(rows, indent=1, ensure_ascii=False) + "\n \n"):
            assert read(put(tmp_path / "a.json", text)) == rows
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert read(put(tmp_path / "a.json", f"\n{lines}"), reading := Interpretation()) == rows
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
def test_objects_are_read_wherever_json_has_them_with_their_place(
    tmp_path: Path, name: str, text: str, places: list[str]
) -> None:
    found = list(read_objects(put(tmp_path / name, text), "KEY", Interpretation()))
    assert [where for where, _ in found] == places
    assert [values["text"] for _, values in found] == [1, 2][: len(places)]


def test_an_object_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.records.json_files.MAX_LINE_BYTES", 1 << 20)
    path = put(tmp_path / "a.json", '[{"text": "a"}, {"text": "' + "x" * (3 << 20) + '"}]')
    with pytest.raises(InputError, match=r"record 1 \(line 1\) is longer than 1 MB: split it"):
        list(read_objects(path, "KEY", Interpretation()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"text": "a", "label": 1},\n{"text": "b", "label": }]', r"record 1 \(line 2\) is not JSON"),
        ('[{"text": "a", "label": 1}\n {"text": "b", "label": 2}]', r"record 1 \(line 1\) is not JSON \(expecting ','"),
        ('[{"text": "a", "label": 1}', "record 1 .* is not JSON"),
        ('[{"text": "a", "label": 1}] x', "record 1 .* is not JSON"),
        ('[{"text": "a", "text": "b"}]', "record 0 .*the key 'text' occurs twice"),
        ('["a"]', "record 0 is str; a list of objects is required"),
        ('{"text": {"0": "a"}, "label": {"0": 1}}\n', "text"),
        (
            '{\n "data": x\n}',
            r"line 1 is not JSON \(Expecting value in line 2: 'x.*one object per line, or a list of objects",
        ),
        ("[" * 100_000, "record 0 .* cannot be read"),
        ('[{"text": "\udcff"}]', "is not UTF-8: found byte 0xff"),
    ],
)
def test_other_json_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    if text.startswith('{"text": {'):
        assert read(path) == [{"text": {"0": "a"}, "label": {"0": 1}}], "one record, whose kind refuses its text"
        return
    with pytest.raises(InputError, match=message):
        read(path)


def test_a_table_without_rows_is_named(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}), tmp_path / "a.parquet"
    )
    put(tmp_path / "a.csv", "text,label\n\n")
    put(tmp_path / "a.tsv", "text\tlabel\n")
    for ending in ("parquet", "csv", "tsv"):
        reading = Interpretation()
        assert read(tmp_path / f"a.{ending}", reading) == []
        assert list_empty(reading) == f" (a.{ending} has a header and no rows)"
    assert list_empty(Interpretation()) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('id,text\n1,"never closed\n2,fine\n3,fine\n', "line 2: the quote before 'never closed' is not closed"),
        ('id,text\n1,a\n2,"ok\nok"\n3,"never\n4,"fine"\n5,x\n', "line 5: the quote before 'never' .*line 6: "),
        ('id,text\n1,"a\n2,"\n3,"b ""c"",\nd\n', 'line 4: the quote before \'b ""c"",\' is not closed'),
        ('id;text\n1;"never closed\n2;fine\n3;fine\n', "line 2: the quote before 'never closed'"),
        ('id,text\n1,5" pipe\n2,"open\n', "line 3: the quote before 'open'"),
        ('"id,text\n1,a\n', "line 1: the quote before 'id,text'"),
        ('id,text\n1,"a" b\n', "line 2 is not valid CSV: "),
        (
            'id,text\n1,"a\n2,b\n3,c",d\n',
            r"line 4 has 3 fields, but the header has 2 \(the row begins in line 2: is a quote",
        ),
    ],
)
def test_a_quote_that_is_not_closed_is_reported_where_it_opens(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_table(put(tmp_path / "a.csv", text), [], Interpretation()))


def test_a_row_that_is_too_long_says_where_its_quote_opens(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tasks.records.csv_files.MAX_LINE_BYTES", 1000)
    path = put(tmp_path / "a.csv", 'id,text\n1,a\n2,"open\n' + "3,x\n" * 500)
    with pytest.raises(InputError, match="line 3: a quote opens here, and the row is longer than"):
        list(read_table(path, [], Interpretation()))


def test_ids_that_are_whole_numbers_become_text() -> None:
    reading = Interpretation()
    assert [convert_id(one, reading) for one in (7, 7.0, "7", 7.5, True, None)] == ["7", "7", "7", 7.5, True, None]
    assert reading.counts[NUMERIC_IDS] == 2
