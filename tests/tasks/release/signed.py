"""Keys to sign with."""

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_key(path: Path, key: Any = None, password: str | None = None) -> Path:
    key = key or ec.generate_private_key(ec.SECP256R1())
    how = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    public = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(*public))
    return path
