"""Origin of a model: licence and language from its README.md, and its name on the Hub from its config.json.

Only values of known patterns are used: both files come from outside, and a release publishes these values.
"""

import re
from pathlib import Path
from typing import Any

from ipu_model.files import find_object, open_regular
from tasks.params.sections import HUB_NAME, WORD
from tasks.params.strict_yaml import MAX_BYTES, parse_yaml
from tasks.stage.errors import ParamsError

CARD, CONFIG = FILES = ("README.md", "config.json")
FRONT_MATTER = re.compile(r"\A\ufeff?---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)
NAMES_WITHOUT_USER = re.compile(r"bert-(base|large)-[a-z-]+")
"""Old names of the Hub. Any other name without a user may be a folder."""
FOLDER_NAMES = re.compile(r".+/checkpoint-\d+|(models?|checkpoints?|outputs?|out|results?|runs?|published|data|tmp)/.+")
"""Typical names of output folders that look like user/name."""


def read_origin(folder: Path) -> dict[str, Any]:
    """Return `license`, `language` (a word or a list) and `name` of a model folder; None if its files lack them."""
    card, name = _front_matter(folder / CARD), (find_object(folder / CONFIG) or {}).get("_name_or_path")
    license, language = card.get("license"), card.get("language")
    several = isinstance(language, list) and language and all(map(_is_word, language))
    return {
        "license": license if _is_word(license) else None,
        "language": language if several or _is_word(language) else None,
        "name": next(filter(_is_public, (name, card.get("base_model"))), None),
    }


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(WORD, value) is not None


def _is_public(name: Any) -> bool:
    """Tell whether a name is a Hub repository rather than a folder."""
    if not isinstance(name, str) or ".." in name or not HUB_NAME.fullmatch(name):
        return False
    return bool(NAMES_WITHOUT_USER.fullmatch(name) or ("/" in name and not FOLDER_NAMES.fullmatch(name)))


def _front_matter(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as stream:
            found = FRONT_MATTER.match(stream.read(MAX_BYTES).decode("utf-8", "replace"))
        values = parse_yaml(found[1]) if found else {}
    except (OSError, ParamsError):
        return {}
    return values if isinstance(values, dict) else {}
