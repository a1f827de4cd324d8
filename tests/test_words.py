"""How Podium speaks: names that say what they name, and prose in plain English."""

import ast
import functools
import re
from collections import defaultdict

from tests.places import ROOT

PACKAGES = ("flows", "tasks", "ipu_model")
NAMES = frozenset(
    ("about", "again", "anew", "asked", "behind", "beside", "between", "chosen", "drawn", "every", "found")
    + ("given", "held", "how", "kept", "known", "learnt", "look", "made", "meant", "named", "of", "own", "place")
    + ("rest", "row", "said", "shown", "so", "some", "stated", "taken", "there", "told", "wanted", "what", "without")
    + ("show", "words", "work")
)
"""Names that a function, class or module may not have: they need a key."""
PHRASES = {
    r"\bbeside\b": "next to, with",
    r"\b[Aa]new\b": "again, from scratch",
    r"\b[Ss]o many\b": "N, that many",
    r"\b([Nn]o|[Ss]ome)body\b": "no one, a user, someone",
    r"\b[Ww]hoever\b": "anyone who",
    r", too\b(?! (few|many|much|large|long|short|small))": "also",
    r"(?<!here )\bis no (?!longer|more\b|better|worse|larger|smaller)[a-z]": "is not a",
    r"(?<!here )\bare no (?!longer|more\b|better|worse|larger|smaller)[a-z]": "are not",
    r"\b[Hh]olds? no\b": "has no, contains no",
    r"\bstands? in\b|\blies? in\b": "is in",
    r"\bat work\b": "running",
    r"\bcomes? of\b": "results from",
    r"\b(is|are|was|were) made of\b": "is built from",
    r"\b[Gg]oes on\b": "continues",
    r"\bforetell|\bforesee": "estimate",
    r"\bluggage\b|\bcourier\b": "staging, uploader",
    r"\bin a hurry\b|\bhurried\b": "near its deadline",
    r"\b[Oo]f one's own\b": "the user's, your",
    r"\b(is|was) said\b": "is reported, states",
    r"\b[Ww]hat (there is|became of)\b": "name it, results of",
    r"\b(set|taken) apart\b": "split off",
    r"\bunder way\b": "running",
    r"\bheard of last\b": "last update",
    r"\b([Pp]ut in it|[Tt]ake it away)\b": "add, remove",
    r"\bapart by (blanks|commas)\b": "separated by",
    r"\bfit to train on\b": "valid",
    r"\bleaves? the house\b": "is published",
}
"""Phrases that may not stand in prose, and what to write instead."""
DOCSTRINGS = re.compile(r"(How|Of|That|Those|What|Where|Whether|Which|Who|Whoever|Whose|Why)\b")
"""Words that no docstring begins with: it begins with an imperative, or with a noun phrase."""


QUOTED = ("docs/made/", "tests/golden/copies/", "tests/test_words.py", "tasks/corpus/world.py")
"""Not searched: made from the code, kept as they were, this list, and sentences of the demo's invented world."""


def prose():
    """Yield the path and the text of everything that people read: code, templates, documents and parameters."""
    folders = (*PACKAGES, "bench", "docs", "tests", "presets")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted([*files, *ROOT.glob("*.md"), *ROOT.glob("*.yaml"), *ROOT.glob("*.py"), ROOT / "Makefile"]):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in (".py", ".md", ".yaml", ".j2", ".js", "") and not name.startswith(QUOTED):
            yield name, path.read_text(encoding="utf-8")


@functools.cache
def definitions():
    """Path, kind, name and docstrings of every module, class and function of the product."""
    return [
        (path.relative_to(ROOT), type(node), path.stem if isinstance(node, ast.Module) else node.name, docstrings(node))
        for folder in PACKAGES
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]


def docstrings(node):
    """The docstring of a module, class or function, and those of the constants and fields in its body."""
    lines = [line.value for line in node.body if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)]
    return [line.value.strip() for line in lines if isinstance(line.value, str)]


def test_names_need_no_key():
    assert [f"{path}: {name}" for path, _, name, _ in definitions() if name.strip("_").lower() in NAMES] == []


def test_a_public_class_has_a_name_of_its_own():
    places = defaultdict(list)
    for path, kind, name, _ in definitions():
        if kind is ast.ClassDef and not name.startswith("_"):
            places[name].append(str(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_docstrings_begin_with_an_imperative_or_a_noun():
    found = [f"{path}: {text}" for path, _, _, texts in definitions() for text in texts if DOCSTRINGS.match(text)]
    assert found == []


def test_prose_has_no_phrase_that_reads_as_translated():
    every = re.compile("|".join(PHRASES))
    found = [
        f"{name}:{number}: {line.strip()} (write: {instead})"
        for name, text in prose()
        if every.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if every.search(line)
        for phrase, instead in PHRASES.items()
        if re.search(phrase, line)
    ]
    assert found == []
