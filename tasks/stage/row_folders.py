"""Row folders of earlier stages: their manifests, and the held-out rows inside them."""

import dataclasses
from pathlib import Path

from ipu_model.rows.format import MANIFEST, Manifest, parse_manifest
from ipu_model.rows.format import read_manifest as _read_manifest
from tasks.stage.artifacts import HELD_OUT
from tasks.stage.errors import translate_device_errors

__all__ = ["HELD_OUT", "MANIFEST", "Manifest", "find_held_out_rows", "read_manifest", "read_manifest_alone"]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a row folder.

    Raises:
        InputError: missing, damaged, of another schema version, or listing files that do not exist.
    """
    with translate_device_errors():
        return _read_manifest(folder)


def read_manifest_alone(file: Path) -> Manifest:
    """Read a manifest whose rows are elsewhere, without its list of files.

    Raises:
        InputError: missing, damaged, or of another schema version.
    """
    with translate_device_errors():
        return dataclasses.replace(parse_manifest(file), files={})


def find_held_out_rows(rows: Path) -> Path | None:
    """Return the folder of the held-out rows of the training rows in `rows`; None if nothing was held out."""
    folder = Path(rows) / HELD_OUT
    return folder if (folder / MANIFEST).is_file() else None
