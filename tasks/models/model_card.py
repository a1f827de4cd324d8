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


def read_results(card: str) -> list[tuple[str, str]]:
    """Return name and value of each score in the model-index of a card, in order; empty if it states none."""
    try:
        return [
            (str(score["name"]), f"{score['value']:.4g}" if isinstance(score["value"], float) else str(score["value"]))
            for model in _parse(card[:MAX_BYTES])["model-index"]
            for result in model["results"]
            for score in result["metrics"]
        ]
    except (KeyError, TypeError):
        return []


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
