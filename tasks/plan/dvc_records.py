"""Information from DVC's records (dvc.lock, its cache and its run-cache) that DVC itself does not report.

Verification (`verify_files`): DVC hashes a file again only if its time or size changed, and never hashes files from its
cache or a remote. Disk corruption and deliberate tampering change neither. So each stage verifies what it is going to
read; a run that relies on a verdict does the same, and so does publish.

Status before a run (`compute_statuses`): DVC does not report the status of stages downstream of one that would be
restored. The run-cache has the outs of a restored stage, so the status of its downstream stages follows.
"""

import configparser
import hashlib
import json
import os
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from ipu_model.core.files import parse_json, read_json
from tasks.params.strict_yaml import value_at
from tasks.plan.plan_file import Plan, differences, read_dvc_file, read_locked_stages
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

LOCK = Path("dvc.lock")
IGNORED = Path(".dvcignore")
THREADS = 8
"""Hashing threads; hashing releases the GIL. A core hashes about 0.6 GB/s, and a disk reads more."""
DAMAGED = artifacts.RUNS / "damaged"
STAGE = "DVC_STAGE"
"""Variable that DVC sets for the commands it runs."""
FOLDER = ".dir"
"""Suffix of DVC's hash of a folder, which is the hash of its file list."""


class _RecordedFile(NamedTuple):
    """Path in the checkout, and its MD5 in dvc.lock."""

    path: str
    md5: str


def find_cache(root: Path) -> Path:
    """Return the folder of DVC's cache for a checkout."""
    return root / ".dvc" / _settings(root).get("cache", "dir", fallback="cache")


def _settings(root: Path) -> configparser.ConfigParser:
    """Return the settings that DVC uses in a checkout: of the system, the user, the project and this host."""
    system = os.environ.get("XDG_CONFIG_DIRS", "").partition(":")[0] or "/etc/xdg"
    user = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    folders = (
        os.environ.get("DVC_SYSTEM_CONFIG_DIR") or Path(system, "dvc"),
        os.environ.get("DVC_GLOBAL_CONFIG_DIR") or Path(user, "dvc"),
        root / ".dvc",
    )
    return read_settings([*(Path(folder, "config") for folder in folders), root / ".dvc" / "config.local"])


def read_settings(files: Sequence[Path]) -> configparser.ConfigParser:
    """Read DVC's settings; later files override earlier ones, and missing files are skipped.

    Raises:
        InputError: a file cannot be read.
    """
    config = configparser.ConfigParser(interpolation=None)
    try:
        config.read(files, encoding="utf-8")
    except configparser.Error as error:
        raise InputError(f"DVC's settings are invalid: {error}. Fix that file") from None
    return config


def default_remote(root: Path) -> tuple[str, str] | None:
    """Return name and URL (without password) of the checkout's default DVC remote; None if there is none."""
    config = _settings(root)
    name = config.get("core", "remote", fallback=None)
    if name is None:
        return None
    url = config.get(f"'remote \"{name}\"'", "url", fallback="its URL is set elsewhere")
    password = urlsplit(url).password
    return name, url.replace(f":{password}@", ":***@") if password else url


def find_dvc_processes(root: Path) -> list[int]:
    """Return the process IDs of every DVC whose current folder is `root`."""
    return [pid for pid, folder in dvc_processes() if folder is not None and folder.samefile(root)]


def uses_cache(cache: Path) -> bool:
    """Return True if a DVC process of any user may be using this cache."""
    return any(folder is None or find_cache(folder).resolve() == cache.resolve() for _, folder in dvc_processes())


def dvc_processes() -> Iterator[tuple[int, Path | None]]:
    """Yield process ID and current folder of every DVC process on this host but children of this process, which work
    only when it asks them; None for folders this user cannot see."""
    for process in psutil.process_iter(["cmdline", "cwd", "ppid"]):
        words, cwd = process.info["cmdline"] or [], process.info["cwd"]
        if process.info["ppid"] == os.getpid():
            continue
        if "dvc" not in words and not any(word.endswith("/dvc") for word in words[:2]):
            continue
        folder = None if cwd is None else Path(cwd)
        if folder is None or folder.exists():
            yield process.pid, folder


def verify_files(paths: Iterable[str], root: Path = Path()) -> None:
    """Verify those of `paths` that are, or are in, an output in dvc.lock; missing paths are skipped.

    Raises:
        InputError: the contents of some differ from what their stage wrote. They are moved to runs/damaged, and corrupt
            objects are removed from DVC's cache, because DVC would restore them: the next run restores the files from
            a remote or rebuilds them.
    """
    written = _outs(read_dvc_file(root / LOCK))
    _require([record for path in paths if (record := _find_record(path, written, root)) is not None], root, root)


def verify_gate(stage: str, root: Path = Path(), copies: Path | None = None) -> None:
    """Verify what a gate wrote and what it read from other stages, or `copies` of it, as its entry in dvc.lock states.

    Raises:
        InputError: see `verify_files`.
    """
    source = root if copies is None else copies
    lock = read_dvc_file(source / LOCK)
    outs, entry = _outs(lock), lock.get("stages", {}).get(stage, {})
    paths = [item for part in ("deps", "outs") for item in entry.get(part, []) if "md5" in item]
    _require([_RecordedFile(item["path"], item["md5"]) for item in paths if _maker(item["path"], outs)], root, source)


def find_gate_damage(gates: Iterable[str], root: Path) -> list[str]:
    """Verify outs and inputs of gates byte by byte; return the problems.

    Damaged files are moved away as in `verify_files`, so that DVC restores or rebuilds them.
    """
    problems = []
    for gate in gates:
        try:
            verify_gate(gate, root)
        except InputError as error:
            problems.append(str(error))
    return problems


def _outs(lock: dict[str, Any]) -> dict[str, str]:
    """Return path -> MD5 of every output in dvc.lock."""
    stages = lock.get("stages", {})
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", []) if "md5" in out}


def _maker(path: str, written: Container[str]) -> str | None:
    """Return the output that a path is, or is in."""
    folders = (path, *map(str, PurePosixPath(path).parents))
    return next((folder for folder in folders if folder in written), None)


def _find_record(path: str, written: dict[str, str], root: Path) -> _RecordedFile | None:
    """Return the recorded MD5 of a path; for a file in a folder whose file list is lost, that of the folder."""
    out = _maker(path, written)
    if out is None or out == path:
        return None if out is None else _RecordedFile(path, written[path])
    name = PurePosixPath(path).relative_to(out).as_posix()
    listed = _listing(written[out], find_cache(root))
    return _RecordedFile(path, listed[name]) if name in listed else _RecordedFile(out, written[out])


def _require(recorded: list[_RecordedFile], root: Path, source: Path) -> None:
    """Raise InputError if files in `source`, which may be copies of those in `root`, differ from dvc.lock."""
    # A stage may list a path twice.
    present = [record for record in dict.fromkeys(recorded) if (source / record.path).exists()]
    wrong = [(record, md5) for record in present if (md5 := _other_md5(record, root, source)) is not None]
    if not wrong:
        return
    fault = "; ".join(
        f"{record.path} is not what its stage wrote (MD5 {actual}, dvc.lock has {record.md5})"
        for record, actual in wrong
    )
    if STAGE not in os.environ and (others := find_dvc_processes(root)):
        raise InputError(f"{fault}: DVC is running here (process {', '.join(map(str, others))}), wait until it ends")
    removed = []
    for file, _ in wrong:
        # DVC would not verify the file again, or refuse to replace it.
        aside = root / DAMAGED / file.path
        if aside.is_dir() and not aside.is_symlink():
            shutil.rmtree(aside)
        aside.parent.mkdir(parents=True, exist_ok=True)
        (root / file.path).replace(aside)
        removed += _discard(file, root)
    text = (
        f"{fault}: it was changed by hand, or the disk is damaged. It is in {DAMAGED} now; run again: DVC restores the "
        "file from its cache, or its stage runs again"
    )
    if removed:
        text += f". Damaged objects were removed from DVC's cache: {', '.join(removed)}"
    if removed and (remote := default_remote(root)):
        text += (
            ". If this happens again after DVC restored the file, the remote "
            f"{remote[0]} ({remote[1]}) is damaged as well: remove the same objects there, and run again"
        )
    raise InputError(text)


def _other_md5(recorded: _RecordedFile, root: Path, source: Path) -> str | None:
    """Return the MD5 of a file if it differs from dvc.lock, else None; a copied folder may lack some files."""
    md5 = compute_md5(source / recorded.path)
    if md5 == recorded.md5 or source == root or not recorded.md5.endswith(FOLDER):
        return None if md5 == recorded.md5 else md5
    listed = _listing(recorded.md5, find_cache(root))
    folder = source / recorded.path
    if listed:
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        return None if all(listed.get(name) == compute_md5(path) for name, path in files.items()) else md5
    md5 = compute_md5(root / recorded.path)  # DVC's file list is lost
    return None if md5 == recorded.md5 else md5


def _discard(recorded: _RecordedFile, root: Path) -> list[str]:
    """Remove corrupt objects of a path from DVC's cache; return their names.

    DVC trusts its cache, and would restore these bytes.
    """
    cache, removed = find_cache(root), []
    for md5 in dict.fromkeys([recorded.md5, *_listing(recorded.md5, cache).values()]):
        path = _object(md5, cache)
        if path.is_file() and _md5_of_file(path) != md5.removesuffix(FOLDER):
            path.unlink()
            removed.append(f"files/md5/{md5[:2]}/{md5[2:]}")
    return removed


def _listing(md5: str, cache: Path) -> dict[str, str]:
    """Return path -> MD5 of each file of a folder, from DVC's cache; empty if the list is lost or damaged."""
    path = _object(md5, cache)
    if not (md5.endswith(FOLDER) and path.is_file()):
        return {}
    text = path.read_bytes()
    if hashlib.md5(text, usedforsecurity=False).hexdigest() != md5.removesuffix(FOLDER):
        return {}
    return {entry["relpath"]: entry["md5"] for entry in parse_json(text.decode())}


def _object(md5: str, cache: Path) -> Path:
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def read_ignored_names(root: Path) -> list[str]:
    """Return the patterns in .dvcignore, which DVC skips in folders that stages read."""
    path = root / IGNORED
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def compute_md5(path: Path, ignored: Sequence[str] = ()) -> str:
    """Return the MD5 that DVC gives a file or folder; for a folder, that of the JSON list of its files, sorted by name.

    Names in the folder that match a pattern of `ignored` are skipped.
    """
    if path.is_file():
        return _md5_of_file(path)
    names = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
    names = {
        name: file
        for name, file in names.items()
        if not any(fnmatch(part, pattern) for part in name.parts for pattern in ignored)
    }
    with ThreadPoolExecutor(THREADS) as pool:
        hashes = list(pool.map(_md5_of_file, names.values()))
    listed = [{"md5": md5, "relpath": name.as_posix()} for name, md5 in zip(names, hashes, strict=True)]
    text = json.dumps(sorted(listed, key=itemgetter("relpath")), sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + FOLDER


def _md5_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


Record = dict[str, Any]
"""Stage as in dvc.lock and the run-cache: cmd, deps, params, outs."""
Hashes = dict[str, str | None]
"""Path -> MD5 as DVC computes it; None: not known before the run."""


LOST = "its outputs are in no cache of this host"
"""Reason why a stage runs that has run before."""


@dataclass(frozen=True)
class StageStatus:
    """Status of one stage in a plan."""

    stage: str
    status: str
    """skipped (nothing changed), restored (from a cache of this host), or runs."""
    why: tuple[str, ...]


def names_read(record: Record) -> tuple[set[str], dict[str, set[str]]]:
    """Return inputs, and parameters by file, of a stage in dvc.lock."""
    return {dep["path"] for dep in record.get("deps", ())}, {k: set(v) for k, v in record.get("params", {}).items()}


@dataclass(frozen=True)
class _Needs:
    """Stage with all values filled in: everything that decides if it runs."""

    cmd: str
    deps: Hashes
    params: dict[str, dict[str, Any] | None]
    """File -> key -> value; None: the file is not known before the run."""
    outs: tuple[str, ...]

    def differ(self, record: Record) -> list[str]:
        """Return why DVC would not reuse the results in `record`; empty if it would."""
        reasons = [] if record.get("cmd") == self.cmd else ["its command changed"]
        known = {dep["path"]: dep.get("md5") for dep in record.get("deps", ())}
        reasons += [f"{path} changed" for path, md5 in self.deps.items() if md5 is not None and known.get(path) != md5]
        recorded = record.get("params", {})
        for file, values in self.params.items():
            before = recorded.get(file, {})
            for name, value in (values or {}).items():
                for key, was, now in differences(name, before.get(name), value):
                    reasons.append(f"{key} {json.dumps(was)} -> {json.dumps(now)}")
        if set(known) != set(self.deps):
            reasons.append("its inputs changed")
        elif names_read(record)[1] != {file: set(values or {}) for file, values in self.params.items()}:
            reasons.append("its parameters changed")
        if {out["path"] for out in record.get("outs", ())} != set(self.outs):
            reasons.append("its outputs changed")
        return reasons

    def unknown(self) -> list[str]:
        """Return inputs that are not known before the run."""
        missing = [path for path, md5 in self.deps.items() if md5 is None]
        return missing + [file for file, values in self.params.items() if values is None]


class _Run:
    """State of a run before it begins; see `compute_statuses` for the arguments."""

    def __init__(self, project: Path, root: Path, plan: Plan, contents: Mapping[str, dict[str, Any]]) -> None:
        self._project, self._root, self._plan, self._stated = project, root, plan, contents
        self._cache = find_cache(project)
        self._ignored = read_ignored_names(project)
        self._lock = read_locked_stages(root / LOCK)
        self._reference = self._lock or read_locked_stages(project / LOCK)
        self._records = _run_cache(self._cache)
        done = [(name, out) for name, record in self._lock.items() for out in record.get("outs", ())]
        self._made = {out["path"]: (name, out.get("md5")) for name, out in done}
        """Output of a stage -> that stage, and the MD5 that the output will have."""
        self._hashed: dict[Path, str | None] = {}

    def tell(self, stage: str) -> StageStatus:
        """Return the status of the next stage of the plan."""
        defined, params = self._plan[stage], dict[str, dict[str, Any] | None]()
        for file, names in defined.params.items():
            content = self._stated[file] if file in self._stated else self._json(file)
            params[file] = None if content is None else {name: value_at(content, name) for name in names}
        needs = _Needs(defined.cmd, {path: self._hash(path) for path in defined.deps}, params, defined.outs)
        before, reference = self._lock.get(stage), self._reference.get(stage)
        record: Record | None = None
        status, why = "runs", ["never ran here"]
        if unknown := needs.unknown():
            makers = dict.fromkeys(
                self._made[out][0] if (out := _maker(path, self._made)) else path for path in unknown
            )
            why = [f"after {', '.join(makers)}", *(needs.differ(reference) if reference else [])]
        elif before is not None and not needs.differ(before):
            record, status, why = before, "skipped", []
            if not self._is_kept(before):
                record, status, why = None, "runs", [LOST]
            elif missing := [path for path in needs.outs if not (self._root / path).exists()]:
                status, why = "restored", [f"{', '.join(missing)} is missing"]
        elif record := next(
            (run for run in self._records.get(needs.cmd, ()) if not needs.differ(run) and self._is_kept(run)), None
        ):
            status, why = "restored", ["same code, data and parameters as an earlier run"]
        elif reference is not None:
            why = needs.differ(reference) or [LOST]
        hashes = {} if record is None else {out["path"]: out.get("md5") for out in record.get("outs", ())}
        self._made |= {path: (stage, hashes.get(path)) for path in needs.outs}
        return StageStatus(stage, status, tuple(why))

    def _is_kept(self, record: Record) -> bool:
        """Return True if the cache of this host has all outs of a stage."""
        return all(_object(out["md5"], self._cache).exists() for out in record.get("outs", ()) if out.get("md5"))

    def _hash(self, path: str) -> str | None:
        """Return the MD5 that a path will have when the stage begins."""
        if (folder := _maker(path, self._made)) is not None:
            md5 = self._made[folder][1]
            return md5 if folder == path or md5 is None else _listing(md5, self._cache).get(path[len(folder) + 1 :])
        absolute, ignored = Path(os.path.normpath(self._root / path)), []
        if absolute.is_relative_to(self._root):
            absolute, ignored = self._project / absolute.relative_to(self._root), self._ignored
        if absolute not in self._hashed:
            self._hashed[absolute] = compute_md5(absolute, ignored) if absolute.exists() else None
        return self._hashed[absolute]

    def _json(self, path: str) -> dict[str, Any] | None:
        """Return the content of a JSON file that a stage makes, if the cache has it."""
        md5 = self._hash(path)
        if md5 is None or not _object(md5, self._cache).is_file():
            return None
        return read_json(_object(md5, self._cache))


def compute_statuses(
    project: Path, root: Path, plan: Plan, contents: Mapping[str, dict[str, Any]], target: Sequence[str]
) -> tuple[StageStatus, ...]:
    """Return the status of each target stage in a run.

    It is correct if outs are as DVC last saw them; only DVC itself detects changes by hand.

    Args:
        project: folder with the code and inputs.
        root: checkout of the run; it need not exist.
        plan: all stages, with paths relative to `root`.
        contents: parameter file in `root` -> its future content.
    """
    run = _Run(project.resolve(), root.resolve(), plan, contents)
    return tuple(run.tell(stage) for stage in target)


def _run_cache(cache: Path) -> dict[str, list[Record]]:
    """Return command -> stages that ran it according to DVC's run-cache, newest first."""
    records: dict[str, list[tuple[float, Record]]] = {}
    for path in (cache / "runs").glob("??/*/*"):
        try:
            record = read_dvc_file(path)
        except ParamsError:
            continue  # an incomplete entry, which flows/dvc/leftovers.py removes
        if isinstance(record, dict) and "cmd" in record:
            records.setdefault(record["cmd"], []).append((path.stat().st_mtime, record))
    return {cmd: [stage for _, stage in sorted(every, key=lambda pair: -pair[0])] for cmd, every in records.items()}
