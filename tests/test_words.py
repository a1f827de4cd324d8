"""How Podium speaks: names that say what they name, and docstrings that begin with an imperative."""

import ast
import functools
import re
from collections import defaultdict

from tests.places import ROOT
from tests.source_files import nodes_of, sources

PACKAGES = ("flows", "tasks", "ipu_model")
NAMES = frozenset(
    ("about", "again", "anew", "asked", "behind", "beside", "between", "chosen", "drawn", "every", "found")
    + ("given", "held", "how", "kept", "known", "learnt", "look", "made", "meant", "named", "of", "own", "place")
    + ("rest", "row", "said", "shown", "so", "some", "stated", "taken", "there", "told", "wanted", "what", "without")
    + ("show", "words", "work")
)
"""Names that a function, class or module may not have: they need a key."""
DOCSTRINGS = re.compile(r"(How|Of|That|Those|What|Where|Whether|Which|Who|Whoever|Whose|Why)\b")
"""Words that no docstring begins with: it begins with an imperative, or with a noun phrase."""


@functools.cache
def definitions():
    """Path, kind, name and docstrings of every module, class and function of the product."""
    return [
        (path.relative_to(ROOT), type(node), path.stem if isinstance(node, ast.Module) else node.name, docstrings(node))
        for path in sources(*PACKAGES)
        for node in nodes_of(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]


def docstrings(node):
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
