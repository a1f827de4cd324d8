"""What a model's own files state of licence, language and name; nothing is made up; the user names the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.models.model_card import read_origin

UNKNOWN = {"license": None, "language": None}


@pytest.mark.parametrize(
    ("card", "config", "expected"),
    [
        ("---\nlicense: mit\nlanguage: am\n---\n# x\n", {}, {"license": "mit", "language": "am"}),
        ("---\r\nlanguage:\r\n- de\r\n- en\r\n---\r\n", {}, {"language": ["de", "en"]}),
        ("---\nlicense: mit\nlanguage: no\nvalue: 3e-5\n---\n", {}, {"license": "mit", "language": "no"}),
        ("\ufeff---\nlicense: cc-by-4.0\n---", {}, {"license": "cc-by-4.0"}),
        ("---\nbase_model: google-bert/bert-base-cased\n---\n", {"_name_or_path": "a/b"}, {}),
        ("no front matter\n---\nlicense: mit\n---\n", {}, {}),
        ("---\nlicense: [mit, gpl]\nlanguage: {a: b}\n---\n", {}, {}),
        ("---\nlicense: <b>x\nlanguage: [en, 'a b']\n---\n", {}, {}),
        ("---\nlanguage: []\n---\n", {}, {}),
        ("---\nlicense: &a [*a\n---\n", {}, {}),
        ("---\n- mit\n---\n", {}, {}),
    ],
)
def test_what_the_files_state_is_read(tmp_path: Path, card: str | None, config: Any, expected: dict[str, Any]) -> None:
    if card is not None:
        (tmp_path / "README.md").write_bytes(card.encode())
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_origin(tmp_path) == UNKNOWN | expected
