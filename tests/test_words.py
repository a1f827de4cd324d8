"""How Podium speaks: one name for each class, and docstrings that begin with an imperative."""

import ast
import re
from collections import Counter

from tests.source_files import name_of, nodes_of, sources

PACKAGES = ("flows", "tasks", "ipu_model")
DOCSTRINGS = re.compile(r"(How|Of|That|Those|What|Where|Whether|Which|Who|Whoever|Whose|Why)\b")
"""Words that no docstring begins with: it begins with an imperative, or with a noun phrase."""


def test_a_public_class_has_a_name_of_its_own():
    nodes = [node for path in sources(*PACKAGES) for node in nodes_of(path)]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_docstrings_begin_with_an_imperative_or_a_noun():
    lines = [
        f"{name_of(path)}:{line.lineno}"
        for path in sources(*PACKAGES)
        for node in nodes_of(path)
        for line in (node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else ())
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
        if DOCSTRINGS.match(line.value.value.strip())
    ]
    assert lines == []
