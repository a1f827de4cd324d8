"""What is read from the Hub: data sets (streamed) and tokenizer files.

No code of a repository is ever run, nothing is reported home, and errors name the params key to turn.
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

from tasks.plan.named_files import require_readable
from tasks.stage.errors import InputError
from tasks.stage.memory import limited_steps
from tasks.stage.process import is_sent

if TYPE_CHECKING:
    import pyarrow as pa

ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".7z", ".rar")
PARQUET_ROWS_AT_ONCE = 1024
ROWS_AT_ONCE = 64
"""Taken from the library in one go: the bound on memory is set and taken back around each."""
ALLOWANCE = 1536 << 20
"""Bytes for one go: the library reads ahead, with threads of its own."""
HUB_READS = "PODIUM_HUB_READS"
"""Repositories of the Hub that runs sent to a worker read with its token, apart by commas (team/podium-*)."""
READABLE = (".parquet", ".json", ".jsonl", ".csv", ".txt", ".arrow")


def open_dataset(
    section: str,
    name: str | None,
    config: str | None,
    split: str,
    revision: str | None,
    *,
    class_names: bool = False,
) -> Iterator[dict[str, Any]]:
    """Rows of one split of a Hub data set, or of a local folder of data files, one by one.

    Args:
        section: section of params.yaml that the messages name (`corpus` or `questions`).
        name: Hub name `user/name`, or a local folder.
        config: configuration of the data set, where it has several.
        split: `train`, `validation`, ...; slices such as `train[:1%]` cannot be streamed.
        revision: branch, tag or commit.
        class_names: give the names of classes for their numbers, where the data set states these.

    Raises:
        InputError: no name given, no such data set, configuration or split, no network, a data set of archives, or
            one that would need its own Python code to be run.
    """
    with _errors_named(section, name, config, split, revision) as given:
        rows = _stream(section, given, config, split, revision)
        names = {key: names_of_classes(one) for key, one in (rows.features or {}).items() if class_names}
        for row in limited_steps(rows, f"{section}.dataset={name}", ROWS_AT_ONCE, ALLOWANCE):
            yield {key: with_names(value, names.get(key, ())) for key, value in row.items()}


def reading_token(name: str) -> bool | None:
    """Return what the Hub's client takes as `token`: None is the user's own, False is none.

    A stranger may have sent the run and chosen what it reads, so the worker's own setting names what its token opens.
    """
    named = [word.strip() for word in os.environ.get(HUB_READS, "").split(",")]
    return False if is_sent() and not any(fnmatch.fnmatchcase(name, one) for one in named) else None


def _token_advice(token: bool | None) -> str:
    """End the message about what was read without a token."""
    if token is None:
        return ""
    return (
        ". A run that was sent to a worker reads the Hub without a token: to let such runs read a private or gated "
        f"repository, name it in {HUB_READS} of the worker"
    )


def names_of_classes(feature: Any) -> list[str]:
    """Names of the classes that a column of `datasets` holds, or has lists of; none where it states none."""
    found = getattr(getattr(feature, "feature", feature), "names", None)
    return list(map(str, found or []))


def stated_classes(schema: pa.Schema, column: str) -> list[str]:
    """The same of a column in a Parquet file that `datasets` wrote."""
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        names: Any = feature.get("feature", feature)["names"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def with_names(value: Any, names: Sequence[str]) -> Any:
    """A class number, or a list of them, as names; whatever is no number of a class stays as it is."""
    if isinstance(value, list) and names:
        return [with_names(one, names) for one in value]
    return names[value] if type(value) is int and 0 <= value < len(names) else value


def open_tables(section: str, name: str | None, revision: str | None, rows_at_once: int) -> Iterator[pa.RecordBatch]:
    """The split `train` as record batches of at most `rows_at_once` rows; otherwise as `open_dataset`.

    Raises:
        InputError: as `open_dataset`.
    """
    with _errors_named(section, name, None, "train", revision) as given:
        tables = _stream(section, given, None, "train", revision).with_format("arrow").iter(batch_size=rows_at_once)
        for table in limited_steps(tables, f"{section}.dataset={name}", allowance=ALLOWANCE):
            yield from table.combine_chunks().to_batches()


def check_dataset(section: str, name: str | None, revision: str | None) -> None:
    """Ask the Hub whether a data set is there and may be read; nothing of it is downloaded.

    Raises:
        InputError: as `open_dataset`.
    """
    with _errors_named(section, name, None, "train", revision) as given:
        _check_files(section, given, revision)


@contextlib.contextmanager
def _errors_named(
    section: str, name: str | None, config: str | None, split: str, revision: str | None
) -> Iterator[str]:
    """Turn the libraries' errors into one that says which keys to look at; gives the name, which must be there."""
    if not name:
        raise InputError(
            f"{section.partition('.')[0]}.source is hub and {section}.dataset is not set: "
            f"set {section}.dataset to a name such as user/name"
        )
    _no_telemetry()
    import httpx2

    try:
        yield name
    except (ValueError, RuntimeError, OSError, httpx2.HTTPError) as error:
        # the library's own errors (not found, gated, bad configuration or split, no connection) are of these kinds
        raise InputError(
            f"{section}.dataset={name} (config {config}, split {split}, revision {revision}) cannot be read: "
            f"{type(error).__name__}: {error}. Check {section}.dataset, its configuration, split and revision, and the "
            f"connection; data sets that need their own Python code are not run{_token_advice(reading_token(name))}"
        ) from None


def _stream(section: str, name: str, config: str | None, split: str, revision: str | None) -> Any:
    import datasets

    _check_files(section, name, revision)
    builder = datasets.load_dataset_builder(name, config, revision=revision, token=reading_token(name))
    chosen = [str(file) for of_split in (builder.config.data_files or {}).values() for file in of_split]
    _refuse_archives(chosen, f"{section}.dataset={name}")
    _read_parquet_bit_by_bit(builder.config)
    return builder.as_streaming_dataset(split)


def _check_files(section: str, name: str, revision: str | None) -> None:
    """Refuse what is not there, and archives: the library would look into them."""
    from huggingface_hub import HfApi

    if Path(name).exists():
        require_readable(Path(name), f"{section}.dataset", "none")
        return
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=reading_token(name))
    info = api.dataset_info(name, revision=revision)
    files = [file.rfilename for file in info.siblings or []]
    if not any(file.lower().endswith(READABLE) for file in files):
        _refuse_archives(files, f"{section}.dataset={name}")


def _read_parquet_bit_by_bit(config: Any) -> None:
    """By itself the library takes a row group as one batch and fetches ahead: 220 MB of text took 820 MB, so 560."""
    if not hasattr(config, "fragment_scan_options"):
        return
    import pyarrow.dataset as ds

    config.batch_size = PARQUET_ROWS_AT_ONCE
    config.fragment_scan_options = ds.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)


def _refuse_archives(files: Sequence[str], source: str) -> None:
    """The library would unpack them, to any size and with any names inside."""
    packed = sorted({file.rsplit("/", 1)[-1] for file in files if file.lower().split("?")[0].endswith(ARCHIVES)})
    if packed:
        raise InputError(
            f"{source} holds archives ({', '.join(packed[:3])}), which are not unpacked: name a data set of Parquet, "
            "JSON, CSV or text files, or unpack it and set the source to files"
        )


def _no_telemetry() -> None:
    from huggingface_hub import constants

    # the constant, too: the environment is read only once, when the client is first imported
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
    """Some files of a Hub model, all of one commit.

    Args:
        repository: `user/name`.
        revision: branch, tag or commit; None is the main branch.
        choose: which of all names to download.
        section: section of params.yaml that the messages name (`tokenizer` or `base_model`); empty: the repository
            was named elsewhere.
        is_target: the run publishes there, and so may read it with the token.

    Returns:
        The commit, all file names of it, and the local path of each downloaded one.

    Raises:
        InputError: no such model or revision, no right to read it, or no connection.
    """
    _no_telemetry()
    from huggingface_hub import HfApi

    token = None if is_target else reading_token(repository)
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
    place = (
        f"{section}.repository={repository} (revision {revision})"
        if section
        else f"{repository} is no folder here, and as a Hub repository it"
    )
    named = f"{section}.revision" if section else "the revision"
    with failures_named(place, repository, named, api.endpoint, _token_advice(token)):
        commit, present = _listing(api, repository, revision)
        # by commit, not by branch: the branch may move between two files
        files = {name: Path(api.hf_hub_download(repository, name, revision=commit)) for name in choose(present)}
    return commit, present, files


@contextlib.contextmanager
def failures_named(place: str, repository: str, revision: str, endpoint: str, advice: str = "") -> Iterator[None]:
    """Turn what the Hub's client raises into an InputError that tells gated, missing and not answered apart.

    Args:
        place: what messages begin with.
        repository: `user/name`.
        revision: what names the revision, as people know it.
        endpoint: the Hub's address.
        advice: what messages end with where the Hub shows no such repository.
    """
    _no_telemetry()
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except (httpx2.HTTPError, ValueError, RuntimeError, OSError) as error:
        # the client's own errors (not found, gated, malformed name, offline) are of these kinds
        why = _reason(error, repository, revision, endpoint)
        hidden = isinstance(error, errors.RepositoryNotFoundError)  # a gated one is of this kind
        raise InputError(f"{place} cannot be read: {why}{advice if hidden else ''}") from None


def _listing(api: Any, repository: str, revision: str | None) -> tuple[str, list[str]]:
    """The commit of a model, and the names of its files; where there is no connection, those of the Hub's cache.

    Raises:
        OSError: no such model or revision, no right to read it, or neither a connection nor a copy.
    """
    import httpx2

    try:
        info = api.model_info(repository, revision=revision)
    except (httpx2.TransportError, ConnectionError):
        snapshot = Path(api.snapshot_download(repository, revision=revision, local_files_only=True))
        return snapshot.name, sorted(str(file.relative_to(snapshot)) for file in snapshot.rglob("*") if file.is_file())
    return str(info.sha), sorted(file.rfilename for file in info.siblings or [])


def _reason(error: Exception, repository: str, revision: str, endpoint: str) -> str:
    """Why a model of the Hub cannot be read, and what to do."""
    import httpx2
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: ask for access on {endpoint}/{repository}, and set HF_TOKEN of that account"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no such revision: check {revision}, a branch, tag or commit"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{endpoint} has no such model, or HF_TOKEN may not see it: check the name and the token"
    if isinstance(error, errors.LocalEntryNotFoundError):
        offline = "HF_HUB_OFFLINE forbids" if constants.HF_HUB_OFFLINE else f"{endpoint} does not answer"
        return f"there is no copy in {constants.HF_HUB_CACHE}, and no way to get one: {offline}"
    text = str(error).strip().split("\n")[0] or type(error).__name__
    if isinstance(error, (httpx2.TransportError, ConnectionError)):
        return f"{endpoint} does not answer ({text}): check the connection and HF_ENDPOINT"
    return f"{text}. Check the name, {revision} and the connection; HF_TOKEN opens private models"
