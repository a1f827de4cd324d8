"""The test Hub's reading routes: who am I, repository information, trees, references, files."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from tests.hub_routes import API, GIT, REVISION, answer, serves
from tests.hub_store import Commit, HubError, Repository, pointer

if TYPE_CHECKING:
    from tests.hub_server import HubServer, Request, Response


@serves("hub", "GET", "/api/whoami-v2", "user")
def whoami(hub: HubServer, request: Request) -> Response:
    assert request.user is not None
    token: dict[str, Any] = {"displayName": "token", "role": request.user["role"]}
    if scopes := request.user.get("scopes"):
        token["fineGrained"] = json.loads(scopes)
    auth = {"type": "access_token", "accessToken": token}
    return answer({"type": "user", "name": request.user["name"], "orgs": [], "auth": auth})


@serves("hub", "GET", API, "read", "blobs securityStatus expand")
@serves("hub", "GET", f"{API}/revision/{REVISION}", "read", "blobs securityStatus expand")
def repository_info(hub: HubServer, request: Request, repository: Repository, revision: str = "main") -> Response:
    commit = repository.resolve(revision)
    blobs = request.query.get("blobs", ["false"])[0].lower() in ("true", "1")
    siblings = [
        {"rfilename": path} | (blob_metadata(blob) if blobs else {}) for path, blob in sorted(commit.tree.items())
    ]
    return answer(
        {
            "_id": "0" * 24,
            "id": repository.name,
            "sha": commit.oid,
            "private": repository.private,
            "gated": False,
            "disabled": False,
            "author": repository.name.split("/")[0],
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "createdAt": "2026-01-01T00:00:00.000Z",
            "lastModified": "2026-01-01T00:00:00.000Z",
            "siblings": siblings,
        }
    )


def blob_metadata(blob: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"size": blob.size, "blobId": blob.oid}
    if blob.lfs:
        values["lfs"] = {"sha256": blob.sha256, "size": blob.size, "pointerSize": len(pointer(blob.sha256, blob.size))}
    return values


@serves("hub", "GET", f"{API}/tree/{REVISION}(?:/(?P<folder>.+))?", "read", "recursive expand limit cursor")
def tree(hub: HubServer, request: Request, repository: Repository, revision: str, folder: str | None) -> Response:
    commit = repository.resolve(revision)
    deep = request.query.get("recursive", ["false"])[0].lower() in ("true", "1")
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for path, blob in sorted(commit.tree.items()):
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if deep else min(2, len(parts))):
            name = prefix + "/".join(parts[:depth])
            oid = hashlib.sha1(name.encode()).hexdigest()
            entries[name] = {"type": "directory", "path": name, "oid": oid, "size": 0}
        if deep or len(parts) == 1:
            entries[path] = tree_entry(path, blob)
    if folder and not entries:
        raise HubError(404, f"{folder} does not exist", "EntryNotFound")
    return answer(list(entries.values()))


def tree_entry(path: str, blob: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "oid": blob.oid, "size": blob.size}
    if blob.lfs:
        entry["lfs"] = {"oid": blob.sha256, "size": blob.size, "pointerSize": len(pointer(blob.sha256, blob.size))}
    return entry


@serves("hub", "GET", f"{API}/refs", "read", "include_prs")
def refs(hub: HubServer, request: Request, repository: Repository) -> Response:
    def listed(kind: str, names: dict[str, str]) -> list[dict[str, str]]:
        return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": oid} for name, oid in names.items()]

    return answer(
        {"branches": listed("heads", repository.branches), "converts": [], "tags": listed("tags", repository.tags)}
    )


@serves("hub", "GET", f"{API}/commits/{REVISION}", "read", "p limit")
def commits(hub: HubServer, request: Request, repository: Repository, revision: str) -> Response:
    """Pages of two, the newest first: a client that reads only the first finds too little."""
    found = [
        {
            "id": commit.oid,
            "title": commit.title,
            "message": "",
            "date": "2026-01-01T00:00:00.000Z",
            "authors": [{"user": "user"}],
        }
        for commit in reversed(repository.history(revision))
    ]
    page = int(request.query.get("p", ["0"])[0])
    response = answer(found[2 * page : 2 * page + 2])
    if found[2 * page + 2 :]:
        response.headers["Link"] = f'<{hub.endpoint}{request.path}?p={page + 1}>; rel="next"'
    return response


@serves("hub", "GET", f"{API}/discussions", "read", "type status author p")
def discussions(hub: HubServer, request: Request, repository: Repository) -> Response:
    """Pages of two: a client that reads only the first finds too little."""
    if request.query.get("type", ["pull_request"]) != ["pull_request"]:
        raise HubError(400, "only pull requests are served")
    wanted = request.query.get("status", ["all"])[0]
    pulls = sorted(repository.pulls.items(), reverse=True)
    listed = [
        {
            "num": number,
            "title": pull["title"],
            "status": pull["status"],
            "author": {"name": pull["author"]},
            "createdAt": "2026-01-01T00:00:00.000Z",
            "isPullRequest": True,
            "repo": {"name": repository.name, "type": repository.kind},
        }
        for number, pull in pulls
        if wanted in ("all", pull["status"])
    ]
    start = 2 * int(request.query.get("p", ["0"])[0])
    return answer({"discussions": listed[start : start + 2], "count": len(listed), "start": start})


@serves("hub", "GET", f"{GIT}/resolve/{REVISION}/(?P<path>.+)", "read", "download")
def resolve(hub: HubServer, request: Request, repository: Repository, revision: str, path: str) -> Response:
    from tests.hub_server import Response

    found: Commit = repository.resolve(revision)
    blob = found.tree.get(path)
    headers = {"X-Repo-Commit": found.oid}
    if blob is None:
        raise HubError(404, "Entry not found", "EntryNotFound")
    if not blob.lfs:
        headers["ETag"] = f'"{blob.oid}"'
        return ranged(hub.store.read(blob.sha256), request, headers)
    headers |= {
        "X-Linked-Etag": f'"{blob.sha256}"',
        "X-Linked-Size": str(blob.size),
        "ETag": f'"{blob.oid}"',
        "Location": f"{hub.storage}/objects/{blob.sha256}",
    }
    return Response(302, b"", headers)


@serves("storage", "GET", "/objects/(?P<oid>[0-9a-f]{64})")
def stored_object(hub: HubServer, request: Request, oid: str) -> Response:
    if request.headers.get("Authorization") is not None:
        raise HubError(400, "the storage host was sent a token")
    return ranged(hub.store.read(oid), request, {"ETag": f'"{oid}"'})


def ranged(data: bytes, request: Request, headers: dict[str, str]) -> Response:
    """The whole file, or the one range that was asked for (RFC 9110, section 14)."""
    from tests.hub_server import Response

    headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if not found:
        return Response(200, data, headers)
    first, last = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
    if first > last:
        return Response(416, b"", {"Content-Range": f"bytes */{len(data)}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(206, data[first : last + 1], headers)
