"""Origin of a model: licence and language from its README.md.

Only values of known patterns are used: the file comes from outside, and a release publishes these values.
"""

import re
from pathlib import Path
from typing import Any

from ipu_model.core.files import open_regular
from tasks.params.sections import WORD
from tasks.params.strict_yaml import MAX_BYTES, parse_yaml
from tasks.stage.errors import ParamsError

CARD = "README.md"
FILES = (CARD, "config.json")
SCORE_ROW = re.compile(
    r"^\| (?P<label>[^|\n]+) \| (?P<value>-?[\d.]+) \| (?P<ends>-?[\d.]+ to -?[\d.]+) \|$", re.MULTILINE
)
"""Score and its interval in the table of a card, in percent."""
FRONT_MATTER = re.compile(r"\A\ufeff?---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)


def read_origin(folder: Path) -> dict[str, Any]:
    """Return `license` and `language` (a word or a list) of a model folder; None if its README.md lacks them."""
    card = _front_matter(folder / CARD)
    license, language = card.get("license"), card.get("language")
    several = isinstance(language, list) and language and all(map(_is_word, language))
    return {
        "license": license if _is_word(license) else None,
        "language": language if several or _is_word(language) else None,
    }


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(WORD, value) is not None


def read_score(card: str) -> str:
    """Return name and percentage of the first score in the table of a card; empty if it has none."""
    row = SCORE_ROW.search(card[:MAX_BYTES])
    return f"{row['label']} {row['value']}" if row else ""


def _front_matter(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as stream:
            return _parse(stream.read(MAX_BYTES).decode("utf-8", "replace"))
    except OSError:
        return {}


def _parse(card: str) -> dict[str, Any]:
    match = FRONT_MATTER.match(card)
    try:
        values = parse_yaml(match[1]) if match else {}
    except ParamsError:
        return {}
    return values if isinstance(values, dict) else {}
