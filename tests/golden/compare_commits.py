"""Compare what two commits make of the same parameters, on this host and on one thread.

    python -m tests.golden.compare_commits BEFORE [AFTER] [--params FILE] [--folder FOLDER]

Each commit is cloned and runs `podium run` there, with its own params.yaml (the demo) or FILE. Then the bytes of the
files under data/, models/ and predictions/ are compared, and metrics, verdicts and scores as values, without what a
clock or the memory of the process decides. Exit code 0: all is the same; 1: what differs is printed; 2: a run failed.
What a commit made is recorded in FOLDER, and not made again there: compare several commits with one parent.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT

BYTES = ("data", "models", "predictions")
VALUES = ("metrics/*.json", "reports/validation/*.json", "evaluation/**/*.json")
NOT_COMPARED = ("seconds", "peak_memory_mb", "per_second", "code revision", "judged metrics/")
"""Places of values that hold a measurement, the commit itself, or the hash of a file that holds one of them."""
ENDED = (0, 3)
"""Exit codes of runs that came to their end: published, rejected."""
ENVIRONMENT = {
    "PODIUM_THREADS": "1",
    "PODIUM_LEDGER": "",
    "DVC_NO_ANALYTICS": "1",
    "DO_NOT_TRACK": "1",
}


def git(*words):
    """Return what git prints in this checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def record(commit, params, folder):
    """Return the exit code of a commit's run, hashes of its files and its values; run it unless `folder` has them."""
    override = b"" if params is None else params.read_bytes()
    revision = git("rev-parse", "--verify", f"{commit}^{{commit}}")
    name = f"{revision[:12]}-{hashlib.sha256(override).hexdigest()[:8]}"
    file, clone = folder / f"{name}.json", folder / name
    if not file.is_file():
        shutil.rmtree(clone, ignore_errors=True)
        git("clone", "--quiet", "--no-checkout", str(ROOT), str(clone))
        git("-C", str(clone), "checkout", "--quiet", "--detach", revision)
        if params is not None:
            shutil.copyfile(params, clone / "params.yaml")
        code = run(clone, folder / "home" / name)
        if code not in ENDED:
            print(f"error: the run of {commit} in {clone} ended with exit code {code}", file=sys.stderr)
            raise SystemExit(2)
        file.write_text(json.dumps({"exit code": code, **outputs(clone)}, indent=1))
    return json.loads(file.read_text())


def run(clone, home):
    """Run `podium run` with the clone's own code, its output on the terminal; return its exit code."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PODIUM_", "PREFECT_", "PYTHON"))
    }
    names = ("PREFECT_HOME", "DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR")
    homes = {one: str(home / one.lower()) for one in names}
    for place in homes.values():
        Path(place).mkdir(parents=True, exist_ok=True)
    print(f"podium run in {clone}", flush=True)
    return subprocess.run(
        [sys.executable, "-m", "flows", "run"], cwd=clone, env=inherited | ENVIRONMENT | homes
    ).returncode


def outputs(clone):
    """Return the hash of each file whose bytes are compared, and the values of each JSON file."""
    files = [path for name in BYTES for path in sorted((clone / name).rglob("*")) if path.is_file()]
    values = [path for pattern in VALUES for path in sorted(clone.glob(pattern))]
    return {
        "files": {str(path.relative_to(clone)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "values": {str(path.relative_to(clone)): json.loads(path.read_text()) for path in values},
    }


def differences(before, after, at=""):
    """Yield a line for each value that differs, with its place."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            place = f"{at} {name}".strip()
            if not any(part in place for part in NOT_COMPARED):
                yield from differences(before.get(name, "(none)"), after.get(name, "(none)"), place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{at} [{number}]")
    elif before != after:
        yield f"{at}: {before} -> {after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit, say the parent")
    parser.add_argument("after", nargs="?", default="HEAD", help="a commit; default: HEAD")
    parser.add_argument("--params", type=Path, help="parameters of both runs; default: each commit's params.yaml")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/compare-commits", help="of clones and records")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    before, after = (record(commit, options.params, folder) for commit in (options.before, options.after))
    lines = list(differences(before, after))
    print("\n".join(lines) or f"the same: {len(after['files'])} files, {len(after['values'])} documents of values")
    raise SystemExit(1 if lines else 0)


if __name__ == "__main__":
    main()
