"""A model that was trained, exported, judged, signed and published by a run: verified and attacked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("OpenSSL", reason="model-signing needs it and does not declare it")
pytest.importorskip("model_signing")
if find_spec("onnxruntime") is None:  # importing it here would start its telemetry
    pytest.skip("needs the extra export", allow_module_level=True)

from flows.runs.checkout import CODE
from tasks.params.strict_yaml import read_yaml
from tasks.release.fetch import download_release
from tasks.release.publish import publish
from tasks.release.signing import ATTESTATION, SIGNATURE
from tests.hub_server import HubServer
from tests.places import ROOT
from tests.prefect_home import make_home
from tests.tasks.downstream.texts.classification_checkout import WORDS, write_texts
from tests.tasks.release.hub_publishing import NAME
from tests.tasks.release.signed import verify, write_key
from tests.tasks.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak

RUN = "finetune classification --model my-bert --train train.csv --dev dev.csv --name signed"
SET = (
    "publish.signing=key",
    "downstream.classification.gate.above_baseline=false",
    "device.runtime=cpu",
    "downstream.classification.export.formats=[onnx, int8]",
)


class Project:
    """A project in which a run has published a signed release."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.release, self.run = (self.folder / place / "signed" for place in ("published", "runs/checkouts"))
        self.keys = folder / "keys"
        home = {f"DVC_{name}_DIR": str(folder / name) for name in ("SITE_CACHE", "GLOBAL_CONFIG", "SYSTEM_CONFIG")}
        key = {"PODIUM_SIGNING_KEY": str(self.keys / "ours.pem")}
        prefect = make_home(folder / "prefect")
        self.environment = {**os.environ, **home, **key, "PREFECT_HOME": str(prefect), "PODIUM_THREADS": "1"}

    def call(self, *words: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flows", *map(str, words)]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("signed"))
    made.keys.mkdir()
    made.folder.mkdir()
    for name in ("ours", "theirs"):
        write_key(made.keys / f"{name}.pem")
    for name in (*CODE, "inputs", "presets", "params.yaml", "dvc.yaml", ".gitignore"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, made.folder / name)
    (made.folder / ".dvc").mkdir()
    (made.folder / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    write_tiny_model(made.folder / "my-bert", WORDS)
    for split in ("train", "dev"):
        write_texts(made.folder / f"{split}.csv", 60, seed=len(split))
    done = made.call(*RUN.split(), *(word for one in SET for word in ("--set", one)))
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture
def release(project: Project, tmp_path: Path) -> Path:
    return Path(shutil.copytree(project.release, tmp_path / "downloaded"))


def test_a_signed_release_with_exports_is_verified_in_a_folder_and_on_the_hub(
    project: Project, tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verify(project.release, project.keys / "ours.pub", receipt=_receipt(project)["files"])
    assert {one.result for one in found.values()} == {"ok"}, found
    assert all(name in found["exports"].text for name in ("onnx/model.onnx", "onnx/model_quantized.onnx"))
    monkeypatch.setenv("PODIUM_SIGNING_KEY", str(project.keys / "ours.pem"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    root = Path(shutil.copytree(project.run, tmp_path / "run", symlinks=True))
    values = read_yaml(root / "params.yaml")
    values["publish"] |= {"target": "hub", "license": "mit", "language": "en"}
    values["downstream"]["classification"]["publish"]["repository"] = NAME
    receipt = publish(values, "classification", root)
    tags = download_release(f"{NAME}@{receipt['tag']}", tmp_path / "fetched")
    found = verify(tmp_path / "fetched", project.keys / "ours.pub", tags=tags)
    assert {one.result for one in found.values()} == {"ok"}, found
    (tmp_path / "fetched/onnx/model.onnx").write_text("text")
    assert "onnx/model.onnx has SHA-256" in verify(tmp_path / "fetched", None, tags=tags)["files"].text


def _receipt(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.run / "reports/publish-classification.json").read_text())
    return found


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def unsign(release: Path) -> Path:
    for name in (SIGNATURE, ATTESTATION):
        (release / name).unlink()
    return release


def test_nothing_states_the_weights_of_an_unsigned_folder(release: Path, project: Project) -> None:
    change_a_byte(unsign(release) / "model.safetensors")
    shutil.rmtree(release / "onnx")  # they would show it
    done = project.call("verify", release)
    assert done.returncode == 0, done.stdout
    assert "not signed" in done.stdout
    assert done.stdout.endswith("Not verified: this release is unsigned.\n")
