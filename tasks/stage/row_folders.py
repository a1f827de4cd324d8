"""Row folders of earlier stages: their manifests, and the held-out rows inside them."""

from pathlib import Path

from ipu_model.rows.format import MANIFEST, Manifest
from ipu_model.rows.format import read_manifest as _read_manifest
from tasks.stage.artifacts import HELD_OUT
from tasks.stage.errors import translate_device_errors


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a row folder.

    Raises:
        InputError: missing, damaged, of another schema version, or listing files that do not exist.
    """
    with translate_device_errors():
        return _read_manifest(folder)


def find_held_out_rows(rows: Path) -> Path | None:
    """Return the folder of the held-out rows of the training rows in `rows`; None if nothing was held out."""
    folder = Path(rows) / HELD_OUT
    return folder if (folder / MANIFEST).is_file() else None
