"""The project's own sources: their trees, and which of them imports which."""

import ast
import functools
import re

from tests.places import ROOT

PACKAGES = ("flows", "tasks", "ipu_model", "bench")
HELPERS = "ipu_model/core"
"""Modules that need the standard library alone; everybody may import them."""
FRAME = (
    "tasks/stage", "tasks/params", "tasks/plan", "tasks/host", "tasks/tracking",
    "ipu_model/__main__.py", "ipu_model/estimates", HELPERS,
)  # fmt: skip
"""Packages and modules that say how a stage runs, never what it makes."""


def sources(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes_of(path):
    return tuple(ast.walk(tree_of(path)))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@functools.cache
def imported_modules(path, as_program=True):
    """Every dotted name a file imports, anywhere; under `if __name__ == "__main__"` only where it is a program."""
    names, nodes = set(), nodes_of(path)
    if not as_program:
        outside = [
            node for node in tree_of(path).body
            if not (isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'")
        ]  # fmt: skip
        nodes = [node for top in outside for node in ast.walk(top)]
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_file(name):
    path = ROOT.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


TEMPLATE = re.compile(r"\"([\w.]+\.j2)\"")
"""How a module names the template it fills, and a template another one."""


def named_templates(path):
    folder = path.parent if path.suffix == ".j2" else path.parent / "templates"
    for name in TEMPLATE.findall(path.read_text(encoding="utf-8")):
        places = [place / name for place in (folder, ROOT / "tasks/pages/templates")]
        yield next((place for place in places if place.is_file()), places[0])


REGISTRY = "tasks/downstream/kind.py"
"""The dictionary of kinds: what asks it for a part loads that of one kind."""


@functools.cache
def import_closure(path):
    """What importing `path` can load of the project, templates included; of the kinds of tasks, the dictionary."""
    closure, todo = set(), [path]
    while todo:
        current = todo.pop()
        if current in closure:
            continue
        closure.add(current)
        todo += named_templates(current)
        if current.suffix == ".j2" or (current != path and name_of(current) == REGISTRY):
            continue
        for name in imported_modules(current, current == path):
            if name.split(".")[0] in PACKAGES and (target := module_file(name)) is not None:
                todo.append(target)
    return {file.relative_to(ROOT).as_posix() for file in closure}


def lies_in(file, deps):
    return any(file == dep or file.startswith(f"{dep}/") for dep in deps)
