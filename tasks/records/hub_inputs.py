"""Data sets (streamed) and model files of the Hub.

Code of a repository is never run, telemetry is off, and errors name the params key to change.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.stage.errors import InputError
from tasks.stage.memory import iterate_limited
from tasks.stage.process import is_sent

if TYPE_CHECKING:
    import pyarrow as pa

ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".7z", ".rar")
PARQUET_ROWS_AT_ONCE = 1024
ROWS_AT_ONCE = 64
"""Rows taken from the library per step; the memory limit is set and lifted around each step."""
ALLOWANCE = 1536 << 20
"""Bytes allowed for one step: the library reads ahead in its own threads."""
HUB_READS = "PODIUM_HUB_READS"
"""Environment variable: Hub repositories that runs sent to a worker read with the worker's token, comma-separated
(team/podium-*)."""
WITHOUT_TOKEN = (
    ". A run sent to a worker reads the Hub without a token. To let such runs read a private or gated repository, "
    f"add it to {HUB_READS} of the worker"
)
READABLE = (".parquet", ".json", ".jsonl", ".csv", ".txt", ".arrow")


def open_dataset(
    section: str,
    name: str | None,
    config: str | None,
    split: str,
    revision: str | None,
    *,
    class_names: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of one split of a Hub data set, or of a local folder of data files, each with its position.

    Args:
        section: section of params.yaml for messages (`corpus` or `questions`).
        split: `train`, `validation`, ...; slices such as `train[:1%]` cannot be streamed.
        class_names: replace class numbers by the names that the data set declares.

    Raises:
        InputError: no name, no such data set, configuration or split, no network, a data set of archives, or one that
            needs its own Python code.
    """
    with _translate_errors(section, name, config, split, revision) as dataset:
        rows = _stream(section, dataset, config, split, revision)
        features = {
            key: getattr(feature, "feature", feature) for key, feature in (rows.features or {}).items() if class_names
        }
        names = {key: list(map(str, getattr(feature, "names", None) or [])) for key, feature in features.items()}
        limited = iterate_limited(rows, f"{section}.dataset={name}", ROWS_AT_ONCE, ALLOWANCE)
        for number, row in enumerate(limited):
            yield f"row {number}", {key: name_classes(value, names.get(key, ())) for key, value in row.items()}


def choose_token(name: str) -> bool | None:
    """Return the `token` argument for the Hub's client: None is the user's own, False is none.

    A run sent to a worker may come from a stranger who chose what it reads. So only repositories that the worker's own
    setting names are read with its token.
    """
    named = [word.strip() for word in os.environ.get(HUB_READS, "").split(",")]
    return False if is_sent() and not any(fnmatch.fnmatchcase(name, pattern) for pattern in named) else None


def read_class_names(schema: pa.Schema, column: str) -> list[str]:
    """Return the class names of a column in a Parquet file that `datasets` wrote; empty if it declares none."""
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        names: Any = feature.get("feature", feature)["names"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def name_classes(value: Any, names: Sequence[str]) -> Any:
    """Replace a class number, or a list of them, by names, and -1, a missing class, by None; other values stay."""
    if isinstance(value, list) and names:
        return [name_classes(item, names) for item in value]
    if not names or type(value) is not int or not -1 <= value < len(names):
        return value
    return names[value] if value >= 0 else None


def open_tables(section: str, name: str | None, revision: str | None, rows_at_once: int) -> Iterator[pa.RecordBatch]:
    """Yield the split `train` in record batches of at most `rows_at_once` rows; for errors see `open_dataset`."""
    with _translate_errors(section, name, None, "train", revision) as dataset:
        tables = _stream(section, dataset, None, "train", revision).with_format("arrow").iter(batch_size=rows_at_once)
        for table in iterate_limited(tables, f"{section}.dataset={name}", allowance=ALLOWANCE):
            yield from table.combine_chunks().to_batches()


def check_dataset(section: str, name: str | None, revision: str | None) -> None:
    """Check that a Hub data set exists and may be read, without downloading it; for errors see `open_dataset`."""
    with _translate_errors(section, name, None, "train", revision) as dataset:
        _check_files(section, dataset, revision)


@contextlib.contextmanager
def _translate_errors(
    section: str, name: str | None, config: str | None, split: str, revision: str | None
) -> Iterator[str]:
    """Yield the name of the data set, which is required, and turn the libraries' errors into an InputError."""
    if not name:
        raise InputError(
            f"{section.partition('.')[0]}.source is hub, but {section}.dataset is not set: "
            f"set {section}.dataset to a name such as user/name"
        )
    source = f"{section}.dataset={name} (config {config}, split {split}, revision {revision})"
    advice = f". Data sets with Python code are not supported{'' if choose_token(name) is None else WITHOUT_TOKEN}"
    with translate_hub_errors(source, name, f"{section}.dataset_revision", advice):
        yield name


def _stream(section: str, name: str, config: str | None, split: str, revision: str | None) -> Any:
    import datasets
    import pyarrow.dataset as ds

    _check_files(section, name, revision)
    builder = datasets.load_dataset_builder(name, config, revision=revision, token=choose_token(name))
    chosen = [str(file) for of_split in (builder.config.data_files or {}).values() for file in of_split]
    _refuse_archives(chosen, f"{section}.dataset={name}")
    if hasattr(builder.config, "fragment_scan_options"):
        # small batches without prefetching: 220 MB of text takes 560 MB of memory then, 820 MB by default
        builder.config.batch_size = PARQUET_ROWS_AT_ONCE
        options = ds.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
        builder.config.fragment_scan_options = options
    return builder.as_streaming_dataset(split)


def _check_files(section: str, name: str, revision: str | None) -> None:
    """Refuse missing data sets, and archives, which the library would unpack."""
    from huggingface_hub import HfApi

    if Path(name).exists():
        from tasks.plan.named_files import require_readable

        require_readable(Path(name), f"{section}.dataset", "none")
        return
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=choose_token(name))
    info = api.dataset_info(name, revision=revision)
    files = [file.rfilename for file in info.siblings or []]
    if not any(file.lower().endswith(READABLE) for file in files):
        _refuse_archives(files, f"{section}.dataset={name}")


def _refuse_archives(files: Sequence[str], source: str) -> None:
    """Refuse archives: the library would unpack them to any size and with any file names."""
    packed = sorted({file.rsplit("/", 1)[-1] for file in files if file.lower().split("?")[0].endswith(ARCHIVES)})
    if packed:
        raise InputError(
            f"{source} contains archives ({', '.join(packed[:3])}), which are not supported. Name a data set of "
            "Parquet, JSON, CSV or text files, or unpack the archives and set the source to files"
        )


def _disable_telemetry() -> None:
    from huggingface_hub import constants

    # the constant as well: the client reads the environment only when it is first imported
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    constants.HF_HUB_DISABLE_TELEMETRY = True
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # one line per request, with the whole URL


def download_files(
    repository: str,
    revision: str | None,
    choose: Callable[[list[str]], Iterable[str]],
    section: str,
    is_target: bool = False,
) -> tuple[str, list[str], dict[str, Path]]:
    """Download the files of a Hub model that `choose` selects by name, all from one commit.

    Return the commit, all its file names, and the local path of each downloaded file.

    Args:
        section: section of params.yaml for messages (`tokenizer` or `base_model`); empty if the repository was named
            elsewhere.
        is_target: the run publishes to this repository, so it may read it with the token.

    Raises:
        InputError: no such model or revision, no permission to read it, or no connection.
    """
    _disable_telemetry()
    from huggingface_hub import HfApi

    token = None if is_target else choose_token(repository)
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
    source, named = f"{repository} is not a local folder, and as a Hub repository it", "the revision"
    if section:
        source, named = f"{section}.repository={repository} (revision {revision})", f"{section}.revision"
    with translate_hub_errors(source, repository, named, "" if token is None else WITHOUT_TOKEN):
        commit, present = _list_files(api, repository, revision)
        # by commit: a branch may move between two downloads
        files = {name: Path(api.hf_hub_download(repository, name, revision=commit)) for name in choose(present)}
    return commit, present, files


@contextlib.contextmanager
def translate_hub_errors(source: str, repository: str, revision: str, advice: str = "") -> Iterator[None]:
    """Turn errors of the Hub's client into an InputError that distinguishes gated, missing and unreachable.

    The message begins with `source` and names the setting of the `revision`; it ends with `advice` if the Hub shows no
    such repository.
    """
    _disable_telemetry()
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except (httpx2.HTTPError, ValueError, RuntimeError, OSError) as error:
        # the client's errors (not found, gated, malformed name, offline) have these types
        why = _explain_error(error, repository, revision)
        hidden = isinstance(error, errors.RepositoryNotFoundError)  # includes gated repositories
        raise InputError(f"{source} cannot be read: {why}{advice if hidden else ''}") from None


def _list_files(api: Any, repository: str, revision: str | None) -> tuple[str, list[str]]:
    """Return the commit and the file names of a model; without a connection, those of the Hub's cache."""
    import httpx2

    try:
        info = api.model_info(repository, revision=revision)
    except (httpx2.TransportError, ConnectionError):
        snapshot = Path(api.snapshot_download(repository, revision=revision, local_files_only=True))
        return snapshot.name, sorted(str(file.relative_to(snapshot)) for file in snapshot.rglob("*") if file.is_file())
    return str(info.sha), sorted(file.rfilename for file in info.siblings or [])


def _explain_error(error: Exception, repository: str, revision: str) -> str:
    """Return why a model of the Hub cannot be read, and what to do."""
    import httpx2
    from huggingface_hub import constants, errors

    endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated. Request access at {endpoint}/{repository} and set HF_TOKEN of that account"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the revision does not exist. Check {revision}: a branch, tag or commit"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{endpoint} has no such repository, or HF_TOKEN may not see it. Check the name and the token"
    if isinstance(error, errors.LocalEntryNotFoundError):
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{endpoint} does not answer"
        return f"{constants.HF_HUB_CACHE} has no copy, and it cannot be downloaded: {offline}"
    text = str(error).strip().split("\n")[0] or type(error).__name__
    if isinstance(error, (httpx2.TransportError, ConnectionError)):
        return f"{endpoint} does not answer ({text}). Check the connection and HF_ENDPOINT"
    return f"{text}. Check the name, {revision} and the connection; private models need HF_TOKEN"
