"""Keys, and what verifying a release says."""

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tasks.release import verify as verification
from tasks.release.signing import Trust


def write_key(path: Path, key: Any = None, password: str | None = None) -> Path:
    key = key or ec.generate_private_key(ec.SECP256R1())
    how = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    public = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(*public))
    return path


def verify(folder: Path, key: Path | None, **known: Any) -> dict[str, verification.ReleaseCheck]:
    trust = Trust(key) if key else None
    return {one.name: one for one in verification.verify(verification.ReceivedRelease(folder, trust, **known))}


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
