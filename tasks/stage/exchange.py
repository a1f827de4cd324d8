"""Exchange of files with the workers of a cluster that do not mount the project: PODIUM_DATA_FOLDER names a URL of any
fsspec protocol that all of them reach (docs/pretrain.md).

A task and its result are sent as bytes in which each absolute path stands for files. The files that a task reads are
uploaded once and downloaded once by each worker; what it writes into the folder of results is uploaded by the worker
and downloaded here. These bytes pass through Dask only, which unpickles tasks and results anyway; nothing at the URL is
unpickled.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import os
import pickle
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ipu_model.core.files import FOREIGN_SECONDS, new_file
from tasks.stage.errors import InputError, ParamsError
from tasks.stage.scratch import make_scratch

FOLDER = "PODIUM_DATA_FOLDER"
IN, OUT = "in", "out"
NAME = re.compile(r"podium-[0-9a-f]{32}")
MODIFIED = ("mtime", "LastModified", "modified", "last_modified", "created")
"""Names of the time of a file in fsspec's file systems."""
_OWN: list[Path] = []
"""Folder of this process for the files of a map."""


class FilesOfPath(NamedTuple):
    """Files that a path stands for."""

    place: str
    """Path relative to the URL: below IN an input, below OUT a result."""
    files: tuple[str, ...]
    """Names of the uploaded files, relative to `place`; "" for the path itself."""


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, name: Callable[[Path], FilesOfPath | None]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._name = name

    def persistent_id(self, value: Any) -> FilesOfPath | None:
        return self._name(value) if isinstance(value, Path) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, find: Callable[[FilesOfPath], Path]) -> None:
        super().__init__(io.BytesIO(content))
        self._find = find

    def persistent_load(self, files: FilesOfPath) -> Path:
        return self._find(files)


def pack(value: Any, name: Callable[[Path], FilesOfPath | None]) -> bytes:
    """Return `value` as bytes; `name` returns the files of a path, or None if the path is kept."""
    stream = io.BytesIO()
    _Pickler(stream, name).dump(value)
    return stream.getvalue()


class Exchange:
    """Files of one map: inputs go to the URL, results come back.

    Args:
        url: folder for the files of this map, removed by `close`.
        results: folder that the tasks write to; None: they write nothing.
    """

    def __init__(self, url: str, results: Path | None) -> None:
        self.url, self._results = f"{url.rstrip('/')}/podium-{uuid.uuid4().hex}", results
        self.files, self.root = open_files(self.url)
        _remove_left(self.files, self.root.rpartition("/")[0])
        self.files.makedirs(self.root, exist_ok=True)
        if "file" in self.files.protocol:
            os.chmod(self.root, 0o700)
        self._uploaded: dict[Path, FilesOfPath] = {}

    def pack(self, value: Any) -> bytes:
        """Return `value` as bytes for `run_packed`, after uploading the files of its paths."""
        return pack(value, self._upload)

    def _upload(self, path: Path) -> FilesOfPath | None:
        if self._results and path.is_relative_to(self._results) and not path.is_file():
            return FilesOfPath(f"{OUT}/{path.relative_to(self._results).as_posix()}", ())
        if path not in self._uploaded:
            names = [""] if path.is_file() else [p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()]
            target = f"{IN}/{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}/{path.name}"
            for name in names:
                _put(self.files, path / name, f"{self.root}/{target}/{name}".rstrip("/"))
            self._uploaded[path] = FilesOfPath(target, tuple(names))
        return self._uploaded[path] if self._uploaded[path].files else None

    def unpack(self, answer: tuple[bytes, list[str]]) -> Any:
        """Return the result of a task, after downloading the files that it wrote."""
        content, written = answer
        results = self._results or Path()
        for name in written:
            _require_inside(name)
            with new_file(results / name) as target:
                self.files.get_file(f"{self.root}/{OUT}/{name}", str(target))
        return _Unpickler(content, lambda files: results / _require_inside(files.place).relative_to(OUT)).load()


def _require_inside(name: str) -> PurePosixPath:
    """Return the path of a worker's file, which must not leave its folder.

    Raises:
        InputError: it is absolute or has `..`.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"a worker answered with the path {name!r:.80}, which leaves its folder: restart the workers")
    return path


def _remove_left(files: Any, parent: str) -> None:
    """Remove the folders of maps whose process was killed: those without a change for a day."""
    with contextlib.suppress(OSError):
        for folder in [name for name in files.ls(parent, detail=False) if NAME.fullmatch(name.rpartition("/")[2])]:
            entries = [*files.find(folder, withdirs=True, detail=True).values(), files.info(folder)]
            changed = [moment for entry in entries if (moment := _modified(entry)) is not None]
            if changed and max(changed) < time.time() - FOREIGN_SECONDS:
                files.rm(folder, recursive=True)


def _modified(info: Mapping[str, Any]) -> float | None:
    value = next((info[name] for name in MODIFIED if info.get(name) is not None), None)
    return value.timestamp() if isinstance(value, datetime) else value


@contextlib.contextmanager
def open_exchange(results: Path | None) -> Iterator[Exchange | None]:
    """Yield the exchange at PODIUM_DATA_FOLDER, whose files are removed at the end; None if it is not set.

    Raises:
        ParamsError: no installed library supports the protocol of the URL.
    """
    url = os.environ.get(FOLDER, "").strip()
    if not url:
        yield None
        return
    try:
        exchange = Exchange(url, results)
    except (ImportError, ValueError) as error:
        raise ParamsError(f"{FOLDER}={url!r} cannot be used: {error}") from None
    try:
        yield exchange
    finally:
        exchange.files.invalidate_cache()
        exchange.files.rm(exchange.root, recursive=True)


def run_packed(url: str, content: bytes) -> tuple[bytes, list[str]]:
    """Run the packed function and item of a task on a worker; return the packed result and the names of its files."""
    files, root = open_files(url)
    folder, out = _own_folder(url), _own_folder(url) / OUT
    out.mkdir()
    try:
        function, item = _Unpickler(content, lambda named: _download(files, root, folder, named)).load()
        result = function(item)
        written = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
        for name in written:
            _put(files, out / name, f"{root}/{OUT}/{name}")
    finally:
        shutil.rmtree(out)

    def name_result(path: Path) -> FilesOfPath | None:
        return FilesOfPath(path.relative_to(folder).as_posix(), ()) if out in path.parents else None

    return pack(result, name_result), written


def open_files(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL or path, and the path in it."""
    import fsspec  # takes a quarter of a second

    system, path = fsspec.core.url_to_fs(url)
    return system, str(path)


def _put(files: Any, source: Path, target: str) -> None:
    files.makedirs(target.rpartition("/")[0], exist_ok=True)
    files.put_file(str(source), target)


def _download(files: Any, root: str, folder: Path, named: FilesOfPath) -> Path:
    path = folder / named.place
    for name in named.files:
        if not (path / name).exists():
            with new_file(path / name) as target:
                files.get_file(f"{root}/{named.place}/{name}".rstrip("/"), str(target))
    return path


@lru_cache(maxsize=1)
def _own_folder(url: str) -> Path:
    """Return the folder of this process for the files of a map; removed with the process or by the next map."""
    while _OWN:
        shutil.rmtree(_OWN.pop())
    _OWN.append(folder := make_scratch())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
