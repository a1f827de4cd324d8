"""Whatever a file from outside holds, a reader ends well or with an error of our tree (seeded damage)."""

import json
from functools import partial

import pytest
from tiny_torch import FINGERPRINT, state_at, write_tiny

from ipu_model.core.errors import DeviceJobError, RowsError
from ipu_model.core.files import sha256_of
from ipu_model.models.model_folder import read_model
from ipu_model.rows.format import MANIFEST, read_manifest
from ipu_model.train.checkpoint import Checkpoints
from tests.fuzzing import damaged_bytes, damaged_json, require_clean

COUNT = 60


holds = partial(require_clean, ours=DeviceJobError)
"""`read` must return, or raise one of our errors with some text."""


@pytest.mark.parametrize("name", [MANIFEST, "config.json", "podium.json"])
def test_the_json_of_rows_and_models(pretrain_rows, tmp_path, name):
    write_tiny(tmp_path)
    folder, read = (pretrain_rows, read_manifest) if name == MANIFEST else (tmp_path, read_model)
    for what, content in damaged_json(json.loads((folder / name).read_text()), COUNT):
        (folder / name).write_bytes(content)
        holds(lambda: read(folder), what)


@pytest.mark.parametrize("name", ["../rows-00000.arrow", "/etc/passwd", "a/rows.arrow", "..", "", "."])
def test_a_manifest_cannot_name_files_outside_its_folder(pretrain_rows, name):
    path = pretrain_rows / MANIFEST
    values = json.loads(path.read_text())
    (pretrain_rows.parent / "rows-00000.arrow").write_bytes(b"")
    path.write_text(json.dumps({**values, "files": {name: 3}}))
    with pytest.raises(RowsError, match="names of files"):
        read_manifest(pretrain_rows)


def test_the_header_of_a_safetensors_file(tmp_path):
    write_tiny(tmp_path)
    path = tmp_path / "model.safetensors"
    good = path.read_bytes()
    length = 8 + int.from_bytes(good[:8], "little")
    for what, content in damaged_bytes(good[:length], COUNT):
        path.write_bytes(content + good[length:])
        holds(lambda: read_model(tmp_path), what)


@pytest.mark.parametrize("name", ["state.json", "sha256.json"])
def test_the_json_of_a_checkpoint(tmp_path, name):
    """Even where the list of hashes was made to fit: it is there against damage, and no signature."""
    checkpoints = Checkpoints(tmp_path, FINGERPRINT, lambda event, **fields: None)
    folder = checkpoints.save(state_at(1))
    good, hashes = json.loads((folder / name).read_text()), json.loads((folder / "sha256.json").read_text())
    for what, content in damaged_json(good, COUNT // 3):
        (folder / name).write_bytes(content)
        if name == "state.json":
            (folder / "sha256.json").write_text(json.dumps({**hashes, name: sha256_of(folder / name)}))
        holds(checkpoints.load_latest, what)
