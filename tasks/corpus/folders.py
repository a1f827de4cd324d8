"""Files of a corpus folder: those to read, and those to leave out with a reason.

A folder may hold more than its text. Settings in .json files, a licence and a read-me are not text to learn. In the
layout of the Hub (train-00000-of-00004.parquet next to test-..., or train/ next to test/) the split `train` is read
alone. Files of formats that are not read are refused where they are most of the bytes.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ipu_model.core.units import format_bytes, shorten
from tasks.records import tables
from tasks.records.interpretation import SHOWN_CHANGES, Interpretation
from tasks.records.json_files import read_objects
from tasks.records.layouts import KEY, is_wikiextractor
from tasks.records.tables import Columns, find_layout
from tasks.records.text_files import file_suffix
from tasks.stage.errors import InputError

JSON = ".json"
SUFFIXES = (".txt", *tables.ENDINGS, JSON)
NEEDED = f"{', '.join(SUFFIXES)} files, or files of WikiExtractor without a suffix (wiki_00)"
_PACKED = re.compile(rf"(.*/)?(wiki_\d+|.*({'|'.join(map(re.escape, SUFFIXES[:-1]))}))\.(bz2|gz|xz|zst)")
"""Packed files of WikiExtractor (its --compress), or of text."""
_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice|changelog)([-_.].*)?", re.IGNORECASE)
MOST_INSPECTED = 50
"""Files of the same name but for numbers, as part-00017.json, after which others are like these."""
_SPLIT = re.compile(
    r"(?<![a-z0-9])((train|training)|(test|testing|validation|valid|val|dev|eval|evaluation))(?![a-z])", re.IGNORECASE
)


def list_usable_files(path: Path, reading: Interpretation, columns: Columns) -> list[Path]:
    """Return the files to read, sorted, and add the others of a folder to `reading.ignored`.

    Raises:
        InputError: no such path, no usable file, packed files that are not supported, or files that are not read and
            have most of the bytes.
    """
    other_data: list[Path] = []
    inspected: Counter[str] = Counter()

    def is_usable(file: Path) -> bool:
        if file == path:
            return file_suffix(file) in SUFFIXES or (not file.suffix and is_wikiextractor(file))
        if any(part.startswith(".") for part in file.relative_to(path).parts):
            return False
        suffix = file_suffix(file)
        usable = suffix in SUFFIXES if file.suffix else is_wikiextractor(file)
        if usable and suffix == JSON:
            form = _name_form(file.as_posix())
            usable, records = (True, 2) if inspected[form] >= MOST_INSPECTED else _inspect_json(file, columns)
            inspected[form] += usable
            if not usable and records < 2:
                return False
        if not usable and not _ABOUT.fullmatch(file.name):
            other_data.append(file)
        return usable

    usable = tables.select_files(
        path, KEY, is_usable, f"{NEEDED}. Convert other formats first (Markdown: name it .txt)", reading
    )
    if packed := [name for name in reading.ignored if _PACKED.fullmatch(name)]:
        raise InputError(
            f"the folder {path} contains {', '.join(packed[:5])} next to {len(usable)} readable files: {KEY} needs "
            f"{NEEDED}. Unpack {packed[0]} first"
        )
    if not path.is_dir():
        return usable
    about = [file for file in usable if file_suffix(file) == ".txt" and _ABOUT.fullmatch(file.name)]
    if len(about) < len(usable):
        usable = _leave_out(about, "files about the data, not read", path, usable, reading)
    _require_most_bytes(path, usable, other_data)
    others = find_other_splits(path, usable)
    return _leave_out(others, "files of other splits than train, not read", path, usable, reading)


def _name_form(name: str) -> str:
    """Return a name with the same number for every number in it."""
    return re.sub(r"\d+", "0", name)


def _inspect_json(file: Path, columns: Columns) -> tuple[bool, int]:
    """Return whether the first record of a .json file in a folder has the text, and the number of records up to two; 0
    if it is not JSON."""
    names: list[tuple[str, ...]] = []
    with contextlib.suppress(InputError):
        for _, values in read_objects(file, KEY, Interpretation()):
            names.append(tuple(values))
            if find_layout(names[0], [{"text": columns["text"]}]) or len(names) > 1:
                break
    return bool(names) and find_layout(names[0], [{"text": columns["text"]}]) is not None, len(names)


def _leave_out(files: list[Path], what: str, path: Path, usable: list[Path], reading: Interpretation) -> list[Path]:
    """Return the usable files without `files`, which are counted."""
    names = [file.relative_to(path).as_posix() for file in files]
    if names:
        reading.count(what, names[0], len(names))
    return [file for file in usable if file not in set(files)]


def _require_most_bytes(path: Path, usable: Iterable[Path], others: list[Path]) -> None:
    sizes = [sum(file.stat().st_size for file in files) for files in (usable, others)]
    if sizes[1] > sizes[0]:
        names = [file.relative_to(path).as_posix() for file in others]
        raise InputError(
            f"most of the folder {path} is not read: {shorten(names, SHOWN_CHANGES)} ({format_bytes(sizes[1])}), next "
            f"to {format_bytes(sizes[0])} that are read. {KEY} needs {NEEDED}; .json files need the column of "
            "corpus.text_column. Convert these files, or move them out of the folder"
        )


def find_other_splits(path: Path, files: Iterable[Path]) -> list[Path]:
    """Return the files of test and validation splits in a folder with the layout of the Hub.

    A file is one if its name, with another split's word and other numbers, is the name of a file of `train`.
    """
    names: dict[Path, tuple[str, bool]] = {}
    for file in files:
        name = file.relative_to(path).as_posix()
        if match := _SPLIT.search(name):
            names[file] = _name_form(f"{name[: match.start()]}*{name[match.end() :]}"), match[2] is not None
    of_train = {form for form, is_train in names.values() if is_train}
    return [file for file, (form, is_train) in names.items() if not is_train and form in of_train]
