"""Signed releases: what is signed, and every change to a release that `podium verify` must name."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("OpenSSL", reason="model-signing needs it and does not declare it")
pytest.importorskip("model_signing")

from cryptography.hazmat.primitives.asymmetric import rsa

from ipu_model.core.files import read_json, write_json
from tasks.params.schema import parameter_values
from tasks.release import verify as verification
from tasks.release.fetch import download_release
from tasks.release.provenance import hash_of
from tasks.release.publish import publish
from tasks.release.signing import Signer, Trust, open_signer
from tasks.stage.errors import PublishError
from tests.hub_server import HubServer
from tests.podium_here import call_podium
from tests.tasks.release.hub_publishing import NAME, commits
from tests.tasks.release.signed import write_key
from tests.tasks.trained_checkout import params_with

FOLDER = "published/podium-demo"
SECRET = "correct horse battery staple"
WEIGHTS, VOCABULARY = "model.safetensors", "vocab.txt"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        write_key(folder / f"{name}.pem")
    return folder


@pytest.fixture(autouse=True)
def our_key(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODIUM_SIGNING_KEY", str(keys / "ours.pem"))


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    root = Path(shutil.copytree(trained, tmp_path_factory.mktemp("signed") / "checkout"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PODIUM_SIGNING_KEY", str(keys / "ours.pem"))
        publish_here(root)
    return root


@pytest.fixture
def checkout(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkout"))


@pytest.fixture
def release(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / FOLDER, tmp_path / "downloaded"))


def publish_here(root: Path, **how: Any) -> dict[str, Any]:
    return publish(parameter_values(params_with(**{"signing": "key", **how})), "squad", root)


def verify(folder: Path, key: Path | None, **known: Any) -> dict[str, verification.ReleaseCheck]:
    received = verification.ReceivedRelease(folder, Trust(key) if key else None, **known)
    return {check.name: check for check in verification.verify(received)}


def results(folder: Path, key: Path, **known: Any) -> dict[str, str]:
    return {name: check.result for name, check in verify(folder, key, **known).items()}


def test_a_signed_release_is_verified_by_podium_and_by_the_command_of_model_signing(release: Path, keys: Path) -> None:
    checks = results(release, keys / "ours.pub")
    assert (checks.pop("exports"), set(checks.values())) == ("skipped", {"ok"}), checks
    words = ("--signature", release / "model.sig", "--public_key", keys / "ours.pub", release)
    subprocess.run([sys.executable, "-m", "model_signing", "verify", "key", *map(str, words)], check=True)


def test_the_statement_binds_the_files_and_has_no_path_user_or_key(checkout: Path, keys: Path) -> None:
    statement = read_json(checkout / FOLDER / "attestation.json")
    names = {path.relative_to(checkout / FOLDER).as_posix() for path in (checkout / FOLDER).rglob("*.*")}
    assert {subject["name"] for subject in statement["subject"]} == names - {"attestation.json", "model.sig"}
    about, gate = statement["predicate"], read_json(checkout / "metrics/squad-gate.json")
    assert about["weights_sha256"] == gate["judged"]["models/squad/model.safetensors"]
    assert (about["verdict"]["accepted"], about["verdict"]["checks"]) == (True, gate["checks"])
    assert about["scores"]["f1"]["value"] == gate["metrics"]["f1"]
    assert about["code"]["git"] == read_json(checkout / FOLDER / "provenance.json")["git"]
    assert len(about["dvc_lock_sha256"]) == 64
    for name in ("attestation.json", "model.sig"):
        content = (checkout / FOLDER / name).read_text()
        assert not any(word in content for word in (str(checkout), str(Path.home()), str(keys), "ours.pem"))


def test_the_same_content_is_signed_once_and_an_unsigned_release_keeps_its_bytes(checkout: Path) -> None:
    signature = (checkout / FOLDER / "model.sig").read_bytes()
    again = publish_here(checkout)
    assert (again["unchanged"], (checkout / FOLDER / "model.sig").read_bytes()) == (True, signature)
    assert publish_here(checkout, signing="none") == again, "the tag is that of the content"
    shutil.rmtree(checkout / FOLDER)
    assert publish_here(checkout, signing="none")["tag"] == again["tag"]
    assert not {"model.sig", "attestation.json"} & {path.name for path in (checkout / FOLDER).iterdir()}
    assert publish_here(checkout)["unchanged"] is False, "a signature that is asked for and missing"
    assert (checkout / FOLDER / "model.sig").is_file()


def test_another_key_or_a_changed_signature_signs_again(checkout: Path, keys: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PODIUM_SIGNING_KEY", str(keys / "theirs.pem"))
    assert publish_here(checkout)["unchanged"] is False
    assert results(checkout / FOLDER, keys / "theirs.pub")["signature"] == "ok"
    for name, text in (("model.sig", "{}"), ("README.md", "a better card")):
        (checkout / FOLDER / name).write_text(text)
        assert publish_here(checkout)["unchanged"] is False
    assert set(results(checkout / FOLDER, keys / "theirs.pub").values()) == {"ok", "skipped"}


def replace(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def change_last_byte(folder: Path, keys: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def sign_with_another_key(folder: Path, keys: Path) -> None:
    (folder / "model.sig").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PODIUM_SIGNING_KEY", str(keys / "theirs.pem"))
        (folder / "model.sig").write_bytes(Signer("key").sign(folder))


def link_vocabulary(folder: Path, keys: Path) -> None:
    (folder / VOCABULARY).rename(folder.parent / VOCABULARY)
    (folder / VOCABULARY).symlink_to(folder.parent / VOCABULARY)


def raise_attested_f1(folder: Path, keys: Path) -> None:
    values = read_json(folder / "attestation.json")
    values["predicate"]["scores"]["f1"]["interval"][0] = 99.0
    write_json(folder / "attestation.json", values)


ATTACKS: dict[str, tuple[Callable[[Path, Path], Any], dict[str, str]]] = {
    "weights": (change_last_byte, {"files": f"{WEIGHTS} has SHA-256", "attestation": "about other weights"}),
    "figure": (
        lambda folder, _: replace(folder, "README.md", "| F1 | 100.00 | 14.67 to", "| F1 | 100.00 | 95.81 to"),
        {"files": "README.md has SHA-256", "card": r"README.md states F1 \| 100.00 \| 95.81 to 100.00, eval"},
    ),
    "model index": (
        lambda folder, _: replace(folder, "README.md", "value: 100.0", "value: 101.0"),
        {"card": "README.md states .* 101.0 \\(model-index\\), .*metrics.json gives"},
    ),
    "word": (
        lambda folder, _: replace(folder, "README.md", "bias was not", "bias was"),
        {"card": "README.md has other text than provenance.json"},
    ),
    "tokenizer": (
        lambda folder, _: replace(folder, "tokenizer.json", '"river"', '"rival"'),
        {"files": "tokenizer.json has SHA-256", "provenance": "tokenizer.json .* the model was trained with"},
    ),
    "file added": (
        lambda folder, _: (folder / "pytorch_model.bin").write_bytes(b"pickle"),
        {"files": "pytorch_model.bin was added", "attestation": "pytorch_model.bin was added"},
    ),
    "file removed": (lambda folder, _: (folder / VOCABULARY).unlink(), {"files": f"{VOCABULARY} is missing"}),
    "attestation": (raise_attested_f1, {"files": "attestation.json has SHA-256", "attestation": "its f1 differs"}),
    "metrics": (
        lambda folder, _: replace(folder, "evaluation/metrics.json", '"f1": 100.0', '"f1": 99.0'),
        {"files": "evaluation/metrics.json has SHA-256", "scores": "states f1=99.0, evaluation/scores.json gives 100"},
    ),
    "parameters": (
        lambda folder, _: replace(folder, "provenance.json", '"min_f1": 85.0', '"min_f1": 95.0'),
        {"files": "provenance.json has SHA-256", "provenance": "parameters were changed"},
    ),
    "another key": (sign_with_another_key, {"signature": "made with another key"}),
    "no signature": (lambda folder, _: (folder / "model.sig").unlink(), {"signature": "not signed: model.sig"}),
    "link": (link_vocabulary, {"links": f"{VOCABULARY} is a link out of the release"}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_each_change_of_a_signed_release_is_named(release: Path, keys: Path, name: str) -> None:
    attack, named = ATTACKS[name]
    attack(release, keys)
    checks = verify(release, keys / "ours.pub")
    for check, words in named.items():
        assert checks[check].result == "failed", (check, checks)
        assert re.search(words, checks[check].text), checks[check]
    if name == "link":
        assert {check.result for check in checks.values()} == {"failed", "skipped"}, "nothing else is read"
    else:
        assert checks["signature"].result == ("failed" if "signature" in named else "ok")


def test_a_reworded_card_of_another_version_is_not_tampering(release: Path) -> None:
    for name in ("model.sig", "attestation.json"):
        (release / name).unlink()
    replace(release, "README.md", "| F1 | 100.00", "| F1, mean of answers | 100.00")
    assert verify(release, None)["card"].result == "failed"
    origin, text = read_json(release / "provenance.json"), (release / "README.md").read_text()
    write_json(release / "provenance.json", {**origin, "card_sha256": hash_of(text)})
    assert verify(release, None)["card"].result == "ok"
    del origin["card_sha256"]  # of a version before it
    write_json(release / "provenance.json", origin)
    assert verify(release, None)["card"].text.endswith("no hash of the rest")


def test_what_hf_download_writes_is_verified(release: Path, keys: Path, tmp_path: Path) -> None:
    (release / ".cache/huggingface/download").mkdir(parents=True)
    for name in (".gitignore", "download/config.json.metadata"):
        (release / ".cache/huggingface" / name).write_text("*")
    assert set(results(release, keys / "ours.pub").values()) == {"ok", "skipped"}
    shutil.rmtree(release / ".cache")
    cache = tmp_path / "models--u--n"
    snapshot = Path(shutil.copytree(release, cache / "snapshots/abc"))
    (cache / "blobs").mkdir()
    for number, path in enumerate([path for path in snapshot.rglob("*") if path.is_file()]):
        blob = path.rename(cache / f"blobs/{number}")
        path.symlink_to(os.path.relpath(blob, path.parent))
    assert set(results(snapshot, keys / "ours.pub").values()) == {"ok", "skipped"}
    (snapshot / VOCABULARY).unlink()
    (snapshot / VOCABULARY).symlink_to(release / VOCABULARY)
    assert f"{VOCABULARY} is a link" in verify(snapshot, keys / "ours.pub")["links"].text


@pytest.mark.parametrize(
    ("name", "password", "words"),
    [
        ("", "", "PODIUM_SIGNING_KEY is not set"),
        ("missing", "", r"cannot be read \(No such file"),
        ("plain.pub", "", "not a private key in PEM format"),
        ("rsa", "", "of another kind: .* elliptic curve"),
        ("encrypted", "", "is encrypted: set PODIUM_SIGNING_PASSWORD"),
        ("encrypted", "wrong", "cannot be decrypted with PODIUM_SIGNING_PASSWORD"),
        ("plain", SECRET, "is not encrypted: unset PODIUM_SIGNING_PASSWORD"),
    ],
)
def test_a_key_that_cannot_sign_is_refused_without_naming_path_or_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, password: str, words: str
) -> None:
    place = tmp_path / "private-place"
    place.mkdir()
    write_key(place / "plain")
    write_key(place / "encrypted", password=SECRET)
    if name == "rsa":
        write_key(place / "rsa", rsa.generate_private_key(65537, 2048))
    monkeypatch.setenv("PODIUM_SIGNING_KEY", str(place / name) if name else "")
    monkeypatch.setenv("PODIUM_SIGNING_PASSWORD", password)
    with pytest.raises(PublishError, match=words) as refused:
        open_signer("key")
    assert not any(word in str(refused.value) for word in ("private-place", SECRET, "wrong"))


def test_an_encrypted_key_signs_with_its_password(checkout: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PODIUM_SIGNING_KEY", str(write_key(tmp_path / "own.pem", password=SECRET)))
    monkeypatch.setenv("PODIUM_SIGNING_PASSWORD", SECRET)
    publish_here(checkout)
    assert results(checkout / FOLDER, tmp_path / "own.pub")["signature"] == "ok"


@pytest.mark.soak
def test_exports_are_accepted_and_equal_the_model(release: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    from tasks.downstream.export.onnx_files import load_model, write_formats

    whole, integers, encoder = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, "is not an ONNX model of an encoder ("
    statement = read_json(release / "attestation.json")
    foreign, int8 = release / "onnx/model.onnx", release / "onnx/model_quantized.onnx"

    def attest(**accepted: bool) -> verification.ReleaseCheck:
        exports = {f"onnx/{name}.onnx": {"accepted": value} for name, value in accepted.items()}
        values = {**statement, "predicate": {**statement["predicate"], "exports": exports}}
        write_json(release / "attestation.json", values)
        return verify(release, keys / "ours.pub")["exports"]

    def attest_model(kind: str, given: tuple[str, int], made: int, weight: Any = None) -> str:
        """What is said of a model of one node, to which a weight is added where there is one."""
        ends = (given, ("y", made))
        inner, outer = (onnx.helper.make_tensor_value_info(*end, ["batch", "length"]) for end in ends)
        names = (given[0], "x" if weight else "y")
        nodes = [onnx.helper.make_node(kind, names[:1], names[1:], **({"to": made} if kind == "Cast" else {}))]
        nodes += [onnx.helper.make_node("Add", ["x", "w"], ["y"])] if weight else []
        graph = onnx.helper.make_graph(nodes, "graph", [inner], [outer], [weight] if weight else [])
        opset = [onnx.helper.make_opsetid("", 18)]
        foreign.write_bytes(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())
        return attest(model=True).text

    write_formats(load_model(release), ("onnx", "int8"), release)
    assert attest(model=True, model_quantized=True).result == "ok"
    assert f"did not accept onnx/{int8.name}" in attest(model=True, model_quantized=False).text
    int8.replace(foreign)
    assert f"onnx/{int8.name} is missing" in attest(model=True, model_quantized=True).text
    exchanged = attest(model=True)
    assert (exchanged.result, "a logit of onnx/model.onnx differs" in exchanged.text) == ("failed", True)
    foreign.write_bytes(b"text")
    assert "Protobuf" in attest(model=True).text
    assert f"{encoder}it has the input x)" in attest_model("Identity", ("x", integers), integers)
    assert f"{encoder}[O" in attest_model("Identity", ("input_ids", whole), whole)
    assert f"{encoder}its output y is tensor(string" in attest_model(
        "Cast", ("input_ids", integers), onnx.TensorProto.STRING
    )
    assert "has other outputs than the model" in attest_model("Cast", ("input_ids", integers), whole)
    with monkeypatch.context() as patch:
        patch.setattr(verification, "EXPORT_SECONDS", 0.01)  # no Python starts so fast
        assert "took longer than 0.01 s" in attest(model=True).text
    (release.parent / "secret").write_bytes(b"abcd")
    weight = onnx.TensorProto(name="w", data_type=whole, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="../../secret")
    assert encoder in attest_model("Cast", ("input_ids", integers), whole, weight)


def write_token(expires_in_s: int) -> str:
    """An OpenID Connect token; Sigstore's client leaves its signature to the server."""
    now = int(time.time())
    claims = {"aud": "sigstore", "sub": "me@example.org", "email": "me@example.org", "iss": "https://example.org"}
    parts = ({"alg": "HS256", "typ": "JWT"}, {**claims, "iat": now - 600, "exp": now + expires_in_s})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*texts, "c2lnbmF0dXJl"])


@pytest.mark.parametrize("token", [None, "secret-token", write_token(-60)], ids=["none", "malformed", "expired"])
def test_a_token_of_sigstore_is_checked_before_anything_runs(monkeypatch: pytest.MonkeyPatch, token: Any) -> None:
    for name in ("SIGSTORE_IDENTITY_TOKEN", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda *_: None)
    if token:
        monkeypatch.setenv("SIGSTORE_IDENTITY_TOKEN", token)
    words = "has expired, or is not an OpenID" if token else "there is no identity"
    with pytest.raises(PublishError, match=words) as refused:
        open_signer("sigstore")
    assert "SIGSTORE_IDENTITY_TOKEN" in str(refused.value)
    assert not token or token not in str(refused.value)


def test_without_a_network_sigstore_neither_signs_nor_verifies(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any) -> None:
        raise ConnectionError("no route to host, token=secret-token")

    monkeypatch.setattr("sigstore.models.ClientTrustConfig.production", unreachable)
    monkeypatch.setenv("SIGSTORE_IDENTITY_TOKEN", write_token(600))
    before = (checkout / FOLDER / "model.sig").read_bytes()
    with pytest.raises(PublishError, match=r"sigstore failed \(ConnectionError\)") as failed:
        publish_here(checkout, signing="sigstore")
    assert "secret-token" not in str(failed.value)
    assert (checkout / FOLDER / "model.sig").read_bytes() == before
    trust = Trust(identity="me@example.org", issuer="https://example.org")
    assert "cannot be verified (ConnectionError" in str(trust.explain_failure(checkout / FOLDER))


def test_the_command_prints_a_line_a_check_and_a_name_of_a_file_cannot_forge_one(release: Path, keys: Path) -> None:
    def run(*words: Any) -> tuple[int, list[str], str]:
        done = call_podium("verify", str(release), *map(str, words))
        return done.returncode, done.stdout.splitlines(), done.stderr

    forged, ours = "x\nsignature    ok       of the owner", ("--key", keys / "ours.pub")
    code, lines, _ = run(*ours)
    assert (code, lines[-1]) == (0, "verified")
    known = dict(line.split(maxsplit=1) for line in lines[:4])
    tag = known["tag"]
    assert known == {"title": "podium-demo", "tag": tag, "day": "unknown", "signer": str(keys / "ours.pub")}
    assert run(*ours, "--tag", tag)[0] == 0
    code, lines, _ = run(*ours, "--tag", "release-000000000000")
    assert (code, any(f"{tag}, release-000000000000 is required" in line for line in lines)) == (1, True)
    (release / forged).write_text("")
    (release / "model.sig").write_text("[" * 200_000)
    code, lines, err = run(*ours)
    assert (code, err, lines[-1].partition(":")[0]) == (1, "", "NOT VERIFIED")
    assert not [line for line in lines if re.match("signature +ok", line)]
    values = json.loads("\n".join(run(*ours, "--json")[1]))
    assert values["verified"] is False
    assert {check["result"] for check in values["checks"]} <= {"ok", "failed", "skipped"}
    code, _, err = run("--key", keys / "ours.pem")
    assert (code, err.count("is not a public key")) == (1, 1)
    for name in ("model.sig", "attestation.json", forged):
        (release / name).unlink()
    code, lines, _ = run()
    assert (code, lines[-1].partition(":")[0]) == (0, "Not verified")


def test_a_signed_release_on_the_hub_is_one_commit_and_its_tag_has_the_signature(
    checkout: Path, keys: Path, tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    to_hub = {"target": "hub", "repository": NAME}

    def check(tag: str, owner: str = "ours") -> dict[str, str]:
        folder = tmp_path / f"{tag}-{owner}-{len(commits(hub))}"
        return results(folder, keys / f"{owner}.pub", tags=download_release(f"{NAME}@{tag}", folder))

    unsigned = publish_here(checkout, **to_hub, signing="none")
    first = publish_here(checkout, **to_hub)
    assert (first["unchanged"], first["tag"]) == (False, unsigned["tag"])
    assert publish_here(checkout, **to_hub) == {**first, "unchanged": True}
    assert publish_here(checkout, **to_hub, signing="none")["unchanged"] is True
    assert len(commits(hub)) == 2
    assert set(check(first["tag"]).values()) == {"ok", "skipped"}
    monkeypatch.setenv("PODIUM_SIGNING_KEY", str(keys / "theirs.pem"))
    assert publish_here(checkout, **to_hub)["commit"] != first["commit"]
    assert len(commits(hub)) == 3
    assert check(first["tag"])["signature"] == "failed"
    assert set(check(first["tag"], "theirs").values()) == {"ok", "skipped"}
