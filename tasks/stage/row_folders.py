"""Row folders of earlier stages: their manifests, and the held-out rows inside them."""

import dataclasses
from pathlib import Path

from ipu_model.errors import DeviceJobError
from ipu_model.rows.format import MANIFEST, Manifest, parse_manifest
from ipu_model.rows.format import read_manifest as _read_manifest
from tasks.stage.artifacts import HELD_OUT
from tasks.stage.errors import InputError

__all__ = ["HELD_OUT", "MANIFEST", "Manifest", "find_held_out_rows", "read_manifest", "read_manifest_alone"]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a row folder.

    Raises:
        InputError: missing, damaged, of another schema version, or listing files that do not exist.
    """
    try:
        return _read_manifest(folder)
    except DeviceJobError as error:
        raise InputError(str(error)) from None


def read_manifest_alone(file: Path) -> Manifest:
    """Read a manifest whose rows are elsewhere, without its list of files.

    Raises:
        InputError: missing, damaged, or of another schema version.
    """
    try:
        return dataclasses.replace(parse_manifest(file), files={})
    except DeviceJobError as error:
        raise InputError(str(error)) from None


def find_held_out_rows(rows: Path) -> Path | None:
    """Return the folder of the held-out rows of the training rows in `rows`; None if nothing was held out."""
    folder = Path(rows) / HELD_OUT
    return folder if (folder / MANIFEST).is_file() else None
