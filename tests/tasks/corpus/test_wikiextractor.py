"""A corpus from WikiExtractor's folders, in both of its forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.corpus.corpus import make_corpus
from tests.tasks.corpus.made_corpus import documents, params, read, refusal, write

BLOCKS = """<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="AT&T "Long Lines"">
AT&T "Long Lines"

It ran &lt;cables&gt; &amp; relays.
History.
It began in 1885.

</doc>
<doc id="13" url="https://en.wikipedia.org/wiki?curid=13" title="Redirect">
Redirect


</doc>
"""
EXPECTED = [("12", 'AT&T "Long Lines"', "It ran <cables> & relays.\nHistory.\nIt began in 1885.")]


@pytest.mark.parametrize(("name", "text"), [("AA/wiki_00", BLOCKS), ("a.txt", "\ufeff" + BLOCKS)])
def test_blocks_become_documents_their_entities_and_title_lines_taken_back(
    tmp_path: Path, name: str, text: str
) -> None:
    write(tmp_path / "in" / name, text)
    summary = make_corpus(params(path=str(tmp_path / "in")), tmp_path / "out")
    assert documents(tmp_path / "out") == EXPECTED
    assert summary.reading.numbers() == {"files read": 1, "empty documents left out": 1}
    assert summary.reading.formats == {"wikiextractor, UTF-8": 1}


def test_the_json_form_gives_the_same_documents(tmp_path: Path) -> None:
    text = "It ran &lt;cables&gt; &amp; relays.\nHistory.\nIt began in 1885."
    row = {"id": "12", "revid": "1", "url": "u", "title": 'AT&T "Long Lines"', "text": text}
    assert read(tmp_path, write(tmp_path / "in/AA/wiki_00", json.dumps(row) + "\n")) == EXPECTED
    reading = json.loads((tmp_path / "out/reading.json").read_text())
    assert reading["inputs"]["corpus"]["unused_columns"] == ["revid", "url"]


def test_packed_files_are_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "in/AA/wiki_00", BLOCKS)
    write(tmp_path / "in/AA/wiki_01.bz2", b"BZh9")
    write(tmp_path / "in/README", "no article")
    assert "Unpack AA/wiki_01.bz2 first" in refusal(tmp_path, tmp_path / "in")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BLOCKS + '<doc id="14" url="u" title="Cut">\nIt en', "ends inside the article of line 14"),
        (BLOCKS + "stray words\n", "line 14 is outside of <doc"),
        ('<doc id="1" url="u" title="A">\n<doc id="2" url="u" title="B">\n', "line 2 begins an article inside"),
        ('{"id": "1", "title": "A"}\n', "no column 'text'"),
    ],
)
def test_damage_is_refused_with_the_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert said in refusal(tmp_path, write(tmp_path / "wiki_00", content))
