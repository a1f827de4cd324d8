"""Row folders that a stage before has made: their manifests, and the held-out rows inside of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ipu_model.errors import DeviceJobError
from ipu_model.rows.format import MANIFEST, Manifest, parse_manifest
from ipu_model.rows.format import read_manifest as _read_manifest
from tasks.stage.artifacts import HELD_OUT
from tasks.stage.errors import InputError

__all__ = ["HELD_OUT", "MANIFEST", "Manifest", "held_out_folder", "read_manifest", "read_manifest_alone"]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a row folder.

    Raises:
        InputError: missing, damaged, of another schema version, or naming files that are not there.
    """
    try:
        return _read_manifest(folder)
    except DeviceJobError as error:
        raise InputError(str(error)) from None


def read_manifest_alone(file: Path) -> Manifest:
    """The manifest in a file whose rows are elsewhere; it names none of their files.

    Raises:
        InputError: missing, damaged, or of another schema version.
    """
    try:
        return dataclasses.replace(parse_manifest(file), files={})
    except DeviceJobError as error:
        raise InputError(str(error)) from None


def held_out_folder(rows: Path) -> Path | None:
    """The held-out rows that belong to the training rows in `rows`; None where nothing was held out."""
    folder = Path(rows) / HELD_OUT
    return folder if (folder / MANIFEST).is_file() else None
