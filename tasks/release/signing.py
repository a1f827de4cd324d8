"""Signatures of releases by OpenSSF's model-signing (extra `signing`): with a private key, or an identity of Sigstore.

Key, password and token are facts of a host: they come from the environment only, and no message repeats them.
"""

import base64
import contextlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipu_model.core.files import format_json, parse_json, read_json, reject_duplicate_keys, sha256_of
from tasks.stage.errors import InputError, PublishError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

KEY, PASSWORD, TOKEN = "PODIUM_SIGNING_KEY", "PODIUM_SIGNING_PASSWORD", "SIGSTORE_IDENTITY_TOKEN"
ATTESTATION, SIGNATURE = "attestation.json", "model.sig"
STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "urn:podium:release:v1"
UNSIGNED = (".git", ".gitattributes", ".github", ".gitignore")
"""Names that model-signing does not sign: git and the Hub write them."""
DOWNLOADED = (".cache", "huggingface")
"""Folder in which `hf download` records what it downloaded."""
EXTRA = "signatures need the extra `signing`: pip install model-signing pyOpenSSL"
CURVES = ("secp256r1", "secp384r1", "secp521r1")
MISMATCH = "Signature mismatch"
"""First words of model-signing for a genuine signature of other files."""
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
"""Exceptions for a file whose content is not what was expected."""


@dataclass(frozen=True)
class Trust:
    """Signer whose signatures are accepted: owner of a public key, or an identity that an issuer certifies."""

    key: Path | None = None
    identity: str | None = None
    issuer: str | None = None

    def require_key(self) -> None:
        """Require model-signing and a public key that can be read.

        Raises:
            InputError: one of them is missing or cannot be used.
        """
        require_package()
        if self.key is not None:
            _config(self)

    def explain_failure(self, folder: Path) -> str | None:
        """Return why the signature in a folder is not of this signer; None if it is.

        It may be a genuine signature of other files: compare these with `read_signed_files`.
        """
        from cryptography.exceptions import InvalidSignature

        try:
            with tempfile.TemporaryDirectory() as empty:  # files are compared elsewhere: here, who signed
                _config(self).verify(Path(empty), folder / SIGNATURE)
        except InvalidSignature:
            return "it was not made with this key, or was changed"
        except _failures() as error:
            text = " ".join(str(error).split())
            if text.startswith(MISMATCH):
                return None
            if text.startswith("Key mismatch"):
                return "it was made with another key"
            return f"it cannot be verified ({type(error).__name__}: {text[:200]})"
        return None


def _failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of Sigstore's client, and those for damaged files."""
    from sigstore.errors import Error

    return (Error, OSError, *MALFORMED)


def _config(trust: Trust) -> Any:
    """Return model-signing's configuration.

    Raises:
        InputError: the public key cannot be used.
    """
    from model_signing import verifying

    config = verifying.Config()
    if trust.key is None:
        return config.use_sigstore_verifier(identity=str(trust.identity), oidc_issuer=str(trust.issuer))
    try:
        return config.use_elliptic_key_verifier(public_key=trust.key)
    except OSError as error:
        raise InputError(f"{trust.key} cannot be read ({error.strerror}): name the signer's public key") from None
    except MALFORMED:
        raise InputError(
            f"{trust.key} is not a public key of an elliptic curve ({', '.join(CURVES)}) in PEM format"
        ) from None


def require_package(error: type[InputError | PublishError] = InputError) -> None:
    """Require model-signing.

    Raises:
        InputError: it is not installed.
    """
    try:
        import model_signing  # noqa: F401
    except ImportError:
        raise error(EXTRA) from None


def read_signed_files(signature: Path) -> dict[str, str]:
    """Return path -> SHA-256 of the files that a signature states; who made it is not checked.

    Raises:
        InputError: it is not a signature of model-signing.
    """
    try:
        envelope = read_json(signature)["dsseEnvelope"]
        resources = parse_json(base64.b64decode(envelope["payload"], validate=True).decode())["predicate"]["resources"]
        hashes = {str(file["name"]): str(file["digest"]) for file in resources if file["algorithm"] == "sha256"}
        if len(hashes) != len(resources):
            raise ValueError("a file is listed twice, or without a SHA-256")
    except MALFORMED:
        raise InputError(f"{SIGNATURE} is not a signature of model-signing") from None
    return hashes


def list_files(folder: Path) -> list[str]:
    """Return the files of a release that a signature covers."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(
        path.as_posix()
        for path in paths
        if path.parts[0] not in (*UNSIGNED, SIGNATURE) and path.parts[:2] != DOWNLOADED
    )


def compare_files(expected: Mapping[str, str], present: Mapping[str, str], claim: str) -> list[str]:
    """Return how the files of a release differ from the expected ones: path -> SHA-256.

    `claim` is what the expected hash is, such as "signed".
    """
    problems = [f"{name} was added" for name in sorted({*present} - {*expected})]
    for name, sha256 in sorted(expected.items()):
        if name not in present:
            problems.append(f"{name} is missing")
        elif present[name] != sha256:
            problems.append(f"{name} has SHA-256 {present[name]}, {claim} {sha256}")
    return problems


@dataclass(frozen=True)
class Signer:
    """Signs releases with the key, or the identity, of this host's environment."""

    kind: str

    def sign(self, folder: Path) -> bytes:
        """Return the signature of a folder.

        Raises:
            PublishError: the key cannot be used, or Sigstore did not sign.
        """
        from model_signing import hashing, signing

        config = signing.Config().set_hashing_config(hashing.Config().set_ignored_paths(paths=[SIGNATURE]))
        if self.kind == "key":
            read_private_key()
            password: Any = _password()  # model-signing passes it on to cryptography, which requires bytes
            config.use_elliptic_key_signer(private_key=os.environ[KEY], password=password)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                if self.kind == "sigstore":
                    config.use_sigstore_signer(identity_token=_token(), use_ambient_credentials=True)
                config.sign(folder, Path(scratch) / SIGNATURE)
            except _failures() as error:
                raise PublishError(
                    f"signing with {self.kind} failed ({type(error).__name__}){SIGSTORE_ADVICE[self.kind]}; "
                    "nothing was published"
                ) from None
            return (Path(scratch) / SIGNATURE).read_bytes()

    def accepts(self, folder: Path) -> bool:
        """Return True if a folder has a signature of this signer that covers its present files."""
        try:
            signed = read_signed_files(folder / SIGNATURE)
        except (InputError, OSError):
            return False
        if signed != {name: sha256_of(folder / name) for name in list_files(folder)}:
            return False
        with tempfile.TemporaryDirectory() as scratch:
            return self._trust(Path(scratch)).explain_failure(folder) is None

    def _trust(self, folder: Path) -> Trust:
        if self.kind == "sigstore":
            from sigstore.oidc import IdentityToken, detect_credential

            token = IdentityToken(_token() or detect_credential("sigstore") or "")
            return Trust(identity=token.identity, issuer=token.federated_issuer)
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = read_private_key().public_key()
        (folder / "key.pub").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return Trust(folder / "key.pub")


SIGSTORE_ADVICE = {
    "key": f": check {KEY}",
    "sigstore": f": check the identity token ({TOKEN}, valid for minutes) and that this host reaches Sigstore",
}


def open_signer(kind: str) -> Signer | None:
    """Return the signer for a value of publish.signing, after checking what it needs; None for "none".

    Raises:
        PublishError: model-signing, the key or the identity token is missing or cannot be used.
    """
    if kind == "none":
        return None
    require_package(PublishError)
    if kind == "key":
        read_private_key()
        return Signer(kind)
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential

    if token := _token():
        try:
            IdentityToken(token)
        except (IdentityError, *MALFORMED):
            raise PublishError(
                f"the token in {TOKEN} has expired, or is not an OpenID Connect token for the audience sigstore: "
                "renew it"
            ) from None
        return Signer(kind)
    with contextlib.suppress(*_failures()):
        if detect_credential("sigstore"):
            return Signer(kind)
    raise PublishError(
        f"publish.signing is sigstore, but there is no identity: set {TOKEN} to an OpenID Connect token for the "
        "audience sigstore, or publish from a CI job that has one"
    )


def read_private_key() -> "EllipticCurvePrivateKey":
    """Read the private key that PODIUM_SIGNING_KEY names.

    Raises:
        PublishError: it is not set, not readable, encrypted with another password, or not a key that can sign.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    named, password = os.environ.get(KEY, ""), _password()
    if not named:
        raise PublishError(f"publish.signing is key, but {KEY} is not set: set it to the path of the private key")
    try:
        content = Path(named).read_bytes()
        key = load_pem_private_key(content, password)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except TypeError:
        needs = f"is encrypted: set {PASSWORD}" if password is None else f"is not encrypted: unset {PASSWORD}"
        raise PublishError(f"the private key that {KEY} names {needs}") from None
    except (ValueError, UnsupportedAlgorithm):
        encrypted = b"ENCRYPTED" in content
        problem = f"cannot be decrypted with {PASSWORD}" if encrypted else "is not a private key in PEM format"
    else:
        if isinstance(key, EllipticCurvePrivateKey) and key.curve.name in CURVES:
            return key
        problem = "is of another kind"
    raise PublishError(
        f"the private key that {KEY} names {problem}: a private key of an elliptic curve ({', '.join(CURVES)}) is "
        "required, as `openssl ecparam -genkey -name prime256v1` writes it"
    )


def _password() -> bytes | None:
    return os.environ[PASSWORD].encode() if os.environ.get(PASSWORD) else None


def _token() -> str | None:
    return os.environ.get(TOKEN) or None


def format_attestation(hashes: Mapping[str, str], predicate: Mapping[str, Any]) -> str:
    """Return attestation.json: an in-toto Statement of these files (path -> SHA-256)."""
    subject = [{"name": name, "digest": {"sha256": hashes[name]}} for name in sorted(hashes)]
    return format_json({"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate})


def read_attestation(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the files of an attestation (path -> SHA-256), and its predicate.

    Raises:
        InputError: it is not an attestation of a release.
    """
    try:
        values = read_json(path, object_pairs_hook=reject_duplicate_keys)
        files = {str(file["name"]): str(file["digest"]["sha256"]) for file in values["subject"]}
        known = values["_type"] == STATEMENT and values["predicateType"] == PREDICATE
        if not known or not isinstance(values["predicate"], dict) or len(files) != len(values["subject"]):
            raise ValueError("not a release")
    except MALFORMED:
        raise InputError(f"{ATTESTATION} is not an in-toto statement of a release") from None
    return files, values["predicate"]
