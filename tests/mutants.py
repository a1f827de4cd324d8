"""Measure what the tests catch: `python -m tests.mutants --count 150` changes one thing at a time in a clone.

A mutant is one changed operator, constant or condition, or one dropped statement, drawn by a fixed seed from flows,
tasks and ipu_model. The tests of its folder run, then those elsewhere that import the changed module. A mutant counts
as killed if a test fails that passes without the change. Results are appended to a file of JSON lines as they come:
a run that was stopped goes on where it was.
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.places import SHARED
from tests.source_files import imported_modules, name_of, sources

PACKAGES = ("flows", "tasks", "ipu_model")
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
TIMEOUT_S = 900


def mutate(node):
    """Return a changed copy of a node, or None if nothing of it can be changed."""
    new = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        new.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, (ast.BoolOp, ast.BinOp)) and type(node.op) in SWAPS:
        new.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        new.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        new.value = node.value + 1
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        new = new.operand
    elif isinstance(node, (ast.AugAssign, ast.Raise)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        new = ast.Pass()
    else:
        return None
    return new


def list_sites(path):
    """Return the nodes of a file that can be changed: no annotation, decorator or formatted text."""
    sites = []

    def visit(node):
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    if mutate(child) is not None:
                        sites.append(child)
                    visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return sites


def change(text, node):
    """Return a file's text with one node replaced, and the change as two lines. Columns of ast count bytes."""
    lines = text.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    new = ast.unparse(mutate(node))
    new = new if isinstance(node, ast.stmt) else f"({new})"
    old = text.encode()[start:end].decode()
    return (text.encode()[:start] + new.encode() + text.encode()[end:]).decode(), f"{old} -> {new}"


def choose_tests(name):
    """Return the test modules for a file of the project, the nearest first."""
    module = name[: -len(".py")].replace("/", ".")
    tests = [path for path in sources("tests") if path.name.startswith("test_")]
    near = {path for path in tests if f"tests/{Path(name).parent.as_posix()}/" in path.as_posix()}
    users = {path for path in tests if module in imported_modules(path)}
    stem = f"test_{Path(name).stem}.py"
    return [name_of(path) for path in sorted(near | users, key=lambda one: (one.name != stem, one not in users, one))]


def run_tests(root, tests):
    """Return the first test that fails ("" if all pass, "timeout"), and the last lines that pytest printed."""
    # Tests of IPUs are marked soak on a Python for which there is no PopTorch.
    marks = "not faults" if any("/ipu/" in one for one in tests) else "not faults and not soak"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks]
    try:
        done = subprocess.run(
            [*command, *tests], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, timeout=TIMEOUT_S,
            capture_output=True, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "timeout", ""
    failed = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", done.stdout, re.M)  # a function with all its rows
    return (failed.group(1) if failed else "" if done.returncode in (0, 5) else "did not start"), done.stdout[-300:]


def main():
    """Run the mutants that a file of results lacks, and print how many were killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=61)
    parser.add_argument("--output", type=Path, default=Path("runs/mutants.jsonl"))
    args = parser.parse_args()
    sites = [(path, node) for path in sources(*PACKAGES) for node in list_sites(path)]
    drawn = random.Random(args.seed).sample(sites, args.count)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in args.output.read_text().splitlines()] if args.output.is_file() else []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "clone"
        (root.parent / SHARED.name).symlink_to(SHARED)
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ".", str(root)], check=True)
        for number, (path, node) in enumerate(drawn):
            name, text = name_of(path), path.read_text(encoding="utf-8")
            if any(one["number"] == number for one in known):
                continue
            began = time.monotonic()
            mutant, what = change(text, node)
            (root / name).write_text(mutant, encoding="utf-8")
            tests = choose_tests(name)
            failed, tail = run_tests(root, tests) if tests else ("", "no tests")
            (root / name).write_text(text, encoding="utf-8")
            if "::" in failed and run_tests(root, [failed])[0]:
                failed, tail = "", f"{failed} fails without the change too"
            row = {"number": number, "file": name, "line": node.lineno, "change": what, "killed": failed}
            known.append({**row, "seconds": round(time.monotonic() - began), "tail": "" if failed else tail})
            with args.output.open("a", encoding="utf-8") as target:
                target.write(json.dumps(known[-1]) + "\n")
            print(f"{len(known)}: {'killed' if failed else 'SURVIVED'} {name}:{node.lineno} {what}", flush=True)
    killed = sum(bool(one["killed"]) for one in known)
    print(f"{killed} of {len(known)} mutants killed ({100 * killed / max(1, len(known)):.0f} %), {args.output}")


if __name__ == "__main__":
    main()
