"""Rules that tell from all labels, cells or tagged sentences of a source whether they may mean something else.

Readers apply them to a file before a run; validation applies them to the examples, as expectations of Great
Expectations. A rule names both readings and the option for each.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tasks.records.csv_files import SEPARATORS
from tasks.records.interpretation import Interpretation
from tasks.records.label_forms import SHOWN_LABELS, SIMILAR, parse_number
from tasks.records.names import SPELLINGS, fold_labels
from tasks.records.tables import TableRow
from tasks.records.text_files import ProblemList
from tasks.stage.errors import InputError

MISSING_NAMES = frozenset(("", "-", "nan", "NaN", "NAN", "None", "null", "NULL", "NA", "N/A", "n/a", "#N/A", "<NA>"))
"""Texts that programs write for a missing value: Python, pandas, SQL, R, Excel, and SNLI."""
DROP = "--missing-labels drop (data.missing_labels) leaves such examples out"
AS_NAMES = "--label-form names (data.label_form) makes each a class"
MISSING_TEXTS = "examples with a text that may stand for a missing one, such as nan or None"
MOST_MISSING = 0.01
"""Share of such examples that is taken for texts that mean what they say."""
MANY_CLASSES, FEWEST_EXAMPLES = 10, 2
"""Number of classes from which on each must have this many examples on average."""
MAX_SHARE, FEWEST_SENTENCES = 50, 10
"""Highest plausible percentage of sentences of one word, and of words that are running numbers; number of sentences
from which on it counts."""
SINGLE_WORDS = f"at most {MAX_SHARE}% of the sentences with one word, so that their median is above 1"
RUNNING_NUMBERS = f"at most {MAX_SHARE}% of the words being their own number in the sentence"
SAME_TYPES = f"no types that differ {SPELLINGS}"
MAX_DIFFERENT = 100_000
_WHOLE = re.compile(r"-?[0-9]{1,18}")
JOINS = re.compile(r"[,;|]")
"""Separators of several labels in one cell."""
STAND_INS, OFTEN = frozenset((-1.0, *(sign * (10.0**n - 1) for n in range(1, 6) for sign in (1, -1)))), 2
"""-1, 9, 99, 999 ... and their negatives, and how often one occurs that is not a value like the others."""

Labels = Mapping[str, int]
"""Name of a label -> number of examples with it, in order of their first one."""


class Rule(NamedTuple):
    """A rule for labels."""

    name: str
    required: str
    problem: str
    """Message for a label that violates it, with the options."""
    find: Callable[[Labels], list[str]]
    """Returns the labels that violate it."""
    applies: Callable[[Any], bool]
    """Tells whether parameters leave the reading open; gets section `data`."""
    is_of_train: bool = False
    """Applies to training examples only."""


def find_decimals(labels: Labels) -> list[str]:
    """Return the labels with decimals, after a dot or a comma, an exponent or a percent sign, if all are numbers."""
    plain = {name: name.removesuffix("%").rstrip() for name in labels}
    numbers = {name: parse_number(text if "." in text else text.replace(",", ".", 1)) for name, text in plain.items()}
    if None in numbers.values():
        return []
    return [name for name, number in numbers.items() if (number or 0) % 1 or {*name.lower()} & {*"%e"}]


def find_rare(labels: Labels) -> list[str]:
    """Return the labels of one example if almost every example has a label of its own."""
    if len(labels) < MANY_CLASSES or sum(labels.values()) >= FEWEST_EXAMPLES * len(labels):
        return []
    return [name for name, count in labels.items() if count == 1]


def find_minus_one(labels: Labels) -> list[str]:
    """Return "-1" if the other labels are 0, 1, 2 and so on: `datasets` writes it for a missing class."""
    others = {int(name) for name in labels if name != "-1" and _WHOLE.fullmatch(name)}
    is_missing = "-1" in labels and len(others) == len(labels) - 1 > 2 and others == set(range(len(others)))
    return ["-1"] if is_missing else []


def find_similar(labels: Labels) -> list[str]:
    """Return the labels that are spellings of one name."""
    return [name for group in fold_labels(labels).values() for name in group]


def find_joined(labels: Labels) -> list[str]:
    """Return the labels that have another label as a part, between separators."""
    split = {name: [part.strip() for part in JOINS.split(name)] for name in labels}
    return [name for name, parts in split.items() if len(parts) > 1 and any(part in labels for part in parts)]


class StandIns:
    """Values to learn that programs and people write for a missing one, far from all others."""

    def __init__(self) -> None:
        """Start without a value."""
        self._found = dict[float, list[str]]()
        """Value of STAND_INS -> its positions, at most as many as count."""
        self._low, self._high = math.inf, -math.inf

    def add(self, value: float, where: str) -> None:
        """Add a value and its position."""
        if value in STAND_INS:
            places = self._found.setdefault(value, [])
            places += [where] * (len(places) < OFTEN)
        else:
            self._low, self._high = min(self._low, value), max(self._high, value)

    def refuse(self, problems: ProblemList) -> None:
        """Add to `problems` each value that occurs OFTEN, further from the others than these are from each other."""
        for value, places in self._found.items():
            if len(places) == OFTEN and max(value - self._high, self._low - value) > self._high - self._low > 0:
                problems.add(
                    "a value far from all others, which may stand for a missing one: leave such rows out of the file; "
                    "--missing-labels keep (data.missing_labels) learns it",
                    places[0],
                    f"{value:g}",
                )


def _is_open(data: Any) -> bool:
    return data.label_form != "names" and data.labels is None


RULES = (
    Rule(
        "labels_without_decimals",
        "no number with decimals, an exponent or a percent sign, or names among the labels",
        "a number with decimals, an exponent or a percent sign as a class: --regression learns values (write them "
        f"without the sign); {AS_NAMES}",
        find_decimals,
        _is_open,
    ),
    Rule(
        "labels_are_single",
        "no label that has another as a part between separators",
        "a label that has another as a part: --multilabel --label-separator comma (or semicolon, or pipe) reads "
        f"several; {AS_NAMES}",
        find_joined,
        _is_open,
    ),
    Rule(
        "labels_repeat",
        f"{FEWEST_EXAMPLES} examples per class on average, from {MANY_CLASSES} classes on",
        "almost as many classes as examples: is it the column of labels? --column label=NAME names another; "
        f"--regression learns values; {AS_NAMES}",
        find_rare,
        _is_open,
        is_of_train=True,
    ),
    Rule(
        "labels_not_missing",
        "no -1 next to the classes 0, 1, 2 ...",
        f"-1 next to 0, 1, 2 ..., which may stand for a missing label: --labels 0,1,2,... and {DROP}; "
        "--missing-labels keep makes it a class",
        find_minus_one,
        lambda data: data.missing_labels == "refuse" and data.labels is None,
    ),
    Rule(
        "labels_differ",
        f"no two labels that differ {SPELLINGS}",
        SIMILAR,
        find_similar,
        lambda data: data.similar_labels == "refuse",
    ),
)


def share_of(part: int, whole: int, sentences: int | None = None) -> float:
    """Return a percentage of the sentences, or of their words; 0 for fewer than FEWEST_SENTENCES sentences."""
    return 100 * part / whole if (whole if sentences is None else sentences) >= FEWEST_SENTENCES else 0.0


def find_implausible(labels: Labels, data: Any, *, is_train: bool) -> dict[Rule, list[str]]:
    """Return the violated rules, each with the labels that violate it; `data` is section `data` of the entry."""
    applied = [rule for rule in RULES if rule.applies(data) and (is_train or not rule.is_of_train)]
    by_rule = {rule: rule.find(labels) for rule in applied}
    return {rule: names for rule, names in by_rule.items() if names}


def is_missing_text(texts: Iterable[str | None], where: str, reading: Interpretation) -> bool:
    """Tell whether one of the texts of an example may stand for a missing one, and count it."""
    is_missing = any(text in MISSING_NAMES - {"", "-"} for text in texts)
    reading.count(MISSING_TEXTS, where, is_missing)
    return is_missing


def refuse_missing_texts(data: Any, examples: int, source: str, reading: Interpretation) -> None:
    """Refuse a source with too many examples that `is_missing_text` counted, unless section `data` drops or keeps them.

    Raises:
        InputError: they are more than MOST_MISSING of its examples.
    """
    missing = reading.counts[MISSING_TEXTS]
    if data.missing_texts == "refuse" and missing > MOST_MISSING * examples:
        raise InputError(
            f"{source}: {missing:,} of {examples:,} are {MISSING_TEXTS} (first: {reading.places[MISSING_TEXTS]}). "
            "--missing-texts drop (data.missing_texts) leaves them out; keep learns them as texts"
        )


class CellLines:
    """Cells of several lines, which may be rows: each line but one has fields as at the ends of a row."""

    def __init__(self) -> None:
        """Start without a cell."""
        self._first = dict[frozenset[str], tuple[str, str]]()
        """Fields at the ends, or beginnings, of the lines of a cell -> its position and first line."""

    def add(self, row: TableRow) -> None:
        """Add the cells of a row."""
        for value in row.values.values():
            lines = value.split("\n") if isinstance(value, str) and "\n" in value else []
            for sign in SEPARATORS if len(lines) > 1 and len(self._first) < MAX_DIFFERENT else ():
                for fields in (
                    {line.strip().rpartition(sign)[2].strip() for line in lines[:-1]},
                    {line.partition(sign)[0].strip() for line in lines[1:] if sign in line},
                ):
                    if 0 < len(fields) <= SHOWN_LABELS:
                        self._first.setdefault(frozenset(fields), (row.where, lines[0]))

    def refuse_rows(self, labels: Collection[str], problems: ProblemList) -> None:
        """Add the cells to `problems` in which these fields are labels."""
        for fields, (where, line) in self._first.items():
            if fields <= set(labels):
                problems.add(
                    "a quoted cell whose lines look like rows: --quoting literal (data.quoting) reads them as rows, "
                    "--quoting enclosing as one cell",
                    where,
                    line,
                )
