"""`podium verify`: check that a release is what its gate accepted and its signer signed."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands import options
from flows.commands.project import CommandContext, resolve_path
from ipu_model.core.files import find_object
from tasks.plan.named_files import escape_name
from tasks.stage import artifacts, streams
from tasks.stage.errors import FAILED, InputError
from tasks.stage.scratch import scratch_folder

if TYPE_CHECKING:
    from tasks.release.signing import Trust
    from tasks.release.verify import ReceivedRelease


@click.command(
    help="Verify MODEL: a release folder, a run that published, or a Hub repository (user/name, user/name@TAG). Checks "
    "every file, the signature, the attestation, the scores, the card and exported models; one line each. Runs nothing "
    "of the release. Exit code 1 if a check fails."
)
@click.argument("model")
@click.option("--key", type=options.FILE, metavar="PUBLIC_KEY", help="public key of the expected signer")
@click.option("--identity", metavar="NAME", help="expected signer, for publish.signing: sigstore")
@click.option("--issuer", metavar="URL", help="OpenID Connect issuer of that identity")
@click.option("--tag", metavar="TAG", help="expected release, release-<12 digits>: another or an older one is refused")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    key: Path | None,
    identity: str | None,
    issuer: str | None,
    tag: str | None,
    as_json: bool,
) -> None:
    from tasks.release.signing import Trust
    from tasks.release.verify import SIGNATURE, verify

    if (identity is None) != (issuer is None) or (key and identity):
        raise click.UsageError("pass --key, or both --identity and --issuer", ctx)
    trust = Trust(key and resolve_path(ctx, key), identity, issuer) if key or identity else None
    if trust is not None:
        trust.require_key()
    with _open_release(ctx, model, trust) as release:
        if tag is not None:
            release = dataclasses.replace(release, tags=frozenset({tag}))
        checks = verify(release)
        facts, is_signed = {} if release.links else release.facts, release.has(SIGNATURE)
    results = {check.name: check.result for check in checks}
    failed, signed = "failed" in results.values(), results["signature"] == "ok"
    facts["signer"] = ((identity or str(key)) if signed else "not checked") if facts else "unknown"
    if as_json:
        verified = {"model": model, **facts, "verified": signed and not failed}
        options.print_json({**verified, "checks": [check._asdict() for check in checks]})
    else:
        # Names and texts come from the release: line breaks and control characters are escaped.
        rows = [(name, "", text) for name, text in facts.items()] + [tuple(check) for check in checks]
        width = max(len(name) for name, _, _ in rows)
        lines = [f"{name:{width}}  {result:7}  {escape_name(text)}" for name, result, text in rows]
        why = "its signer was not checked" if is_signed else "this release is unsigned"
        end = "verified" if signed else f"Not verified: {why}."
        streams.say("\n".join([*lines, "NOT VERIFIED: do not use this release" if failed else end]) + "\n")
    if failed:
        raise SystemExit(FAILED)


@contextlib.contextmanager
def _open_release(ctx: click.Context, model: str, trust: "Trust | None") -> "Iterator[ReceivedRelease]":
    """Yield the release that a word names.

    Raises:
        InputError: it is not found.
    """
    from flows.runs.checkout import checkout_folder
    from tasks.release.fetch import download_release
    from tasks.release.verify import ReceivedRelease

    context: CommandContext = ctx.obj
    folder = resolve_path(ctx, Path(model))
    if folder.is_dir() and not (folder / artifacts.PARAMS).is_file():
        yield ReceivedRelease(folder.resolve(), trust)
        return
    run = folder if folder.is_dir() or context.project is None else checkout_folder(context.project, model)
    if (run / artifacts.PARAMS).is_file():
        receipt = _read_receipt(run, model)
        if receipt["target"] == "local":
            yield ReceivedRelease((run / receipt["folder"]).resolve(), trust, receipt=receipt["files"])
            return
        model = f"{receipt['repository']}@{receipt['tag']}"
    with scratch_folder() as scratch:
        release = scratch / "release"
        yield ReceivedRelease(release, trust, tags=download_release(model, release))


def _read_receipt(run: Path, name: str) -> dict[str, Any]:
    files = [find_object(path) for path in sorted((run / artifacts.REPORTS).glob("publish-*.json"))]
    receipts = [receipt for receipt in files if receipt and receipt.get("tag")]
    if len(receipts) != 1:
        count = f"{len(receipts)} releases: name the folder or repository of one" if receipts else "not published"
        raise InputError(f"{name} has {count}")
    return receipts[0]
