"""The test Hub's writing routes: create, pre-upload, large files, commit, tag."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from typing import TYPE_CHECKING, Any

import yaml

from tests.hub_routes import API, GIT, NAME, REVISION, answer, fields, serves
from tests.hub_store import HubError, Repository, is_large

if TYPE_CHECKING:
    from tests.hub_server import HubServer, Request, Response


@serves("hub", "POST", "/api/repos/create", "user")
def create_repository(hub: HubServer, request: Request) -> Response:
    assert request.user is not None
    values = request.json()
    values = {key: value for key, value in values.items() if value is not None}
    fields(values, {"name": str}, {"organization": str, "visibility": str, "type": str})
    owner = values.get("organization", request.user["name"])
    if values.get("visibility", "public") not in ("public", "private"):
        raise HubError(400, f"visibility {values['visibility']!r} is not known")
    if owner != request.user["name"] or request.user["role"] != "write":
        raise HubError(403, f"You don't have the rights to create a model under the namespace {owner!r}.")
    name = f"{owner}/{values['name']}"
    kind = values.get("type", "model")
    url = f"{hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"
    if (kind, name) in hub.store.repositories:
        return answer({"error": "You already created this model repo", "url": url}, 409)
    hub.store.create(kind, name, private=values.get("visibility") == "private")
    return answer({"url": url, "name": name, "id": secrets.token_hex(12)})


@serves("hub", "POST", "/api/validate-yaml")
def validate_yaml(hub: HubServer, request: Request) -> Response:
    values = fields(request.json(), {"content": str, "repoType": str})
    found = re.match(r"---\n(.*?)\n---\n", values["content"], re.DOTALL)
    try:
        metadata = yaml.safe_load(found.group(1)) if found else None
    except yaml.YAMLError as error:
        return answer({"errors": [{"message": str(error)}], "warnings": []}, 400)
    errors = [] if isinstance(metadata, dict) else [{"message": "no metadata"}]
    licence = (metadata or {}).get("license")
    if licence is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", str(licence)):
        errors.append({"message": f'"license" must be one of [apache-2.0, mit, ...], not {licence!r}'})
    return answer({"errors": errors, "warnings": []}, 400 if errors else 200)


@serves("hub", "DELETE", f"{API}/tag/{REVISION}", "write")
def delete_tag(hub: HubServer, request: Request, repository: Repository, revision: str) -> Response:
    if repository.tags.pop(revision, None) is None:
        raise HubError(404, f"Tag doesn't exist: {revision}", "RevisionNotFound")
    return answer({})


@serves("hub", "POST", f"{API}/tag/{REVISION}", "write")
def create_tag(hub: HubServer, request: Request, repository: Repository, revision: str) -> Response:
    values = fields(request.json(), {"tag": str}, {"message": str})
    if not re.fullmatch(r"[\w][\w.-]*", values["tag"]):
        raise HubError(400, f"{values['tag']!r} is not a name of a tag")
    commit = repository.resolve(revision)
    if values["tag"] in repository.tags:
        raise HubError(409, f"Tag reference exists already: {values['tag']}")
    repository.tags[values["tag"]] = commit.oid
    return answer({})


@serves("hub", "POST", f"{API}/preupload/{REVISION}", "write", "create_pr")
def preupload(hub: HubServer, request: Request, repository: Repository, revision: str) -> Response:
    values = fields(request.json(), {"files": list}, {"gitAttributes": str, "gitIgnore": str})
    head = repository.resolve(revision)
    if not 0 < len(values["files"]) <= 256:
        raise HubError(400, f"{len(values['files'])} files; 1 to 256 a call")
    listed = []
    for file in values["files"]:
        fields(file, {"path": str, "sample": str, "size": int})
        safe_path(file["path"])
        if len(base64.b64decode(file["sample"], validate=True)) != min(512, file["size"]):
            raise HubError(400, f"the sample of {file['path']} must be its first 512 bytes")
        mode = "lfs" if is_large(file["path"], file["size"]) else "regular"
        repository.preuploaded[file["path"]] = mode
        entry: dict[str, Any] = {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
        known = head.tree.get(file["path"])
        if known is not None:
            entry["oid"] = known.sha256 if known.lfs else known.oid
        listed.append(entry)
    return answer({"files": listed})


def safe_path(path: str) -> str:
    if path.startswith("/") or any(part in ("", ".", "..", ".git") for part in path.split("/")):
        raise HubError(400, f"invalid path {path!r}")
    return path


@serves("hub", "POST", rf"{GIT}\.git/info/lfs/objects/batch", "write")
def lfs_batch(hub: HubServer, request: Request, repository: Repository) -> Response:
    if request.headers.get("Accept") != "application/vnd.git-lfs+json":
        raise HubError(400, f"Accept {request.headers.get('Accept')} must be application/vnd.git-lfs+json")
    values = fields(
        request.json(), {"operation": str, "transfers": list, "objects": list, "hash_algo": str}, {"ref": dict}
    )
    if values["operation"] != "upload" or values["hash_algo"] != "sha256" or "basic" not in values["transfers"]:
        raise HubError(400, f"operation {values['operation']}, transfers {values['transfers']} are not served")
    objects = []
    for wanted in values["objects"]:
        fields(wanted, {"oid": str, "size": int})
        if not re.fullmatch("[0-9a-f]{64}", wanted["oid"]):
            raise HubError(400, f"oid {wanted['oid']} is no SHA-256")
        entry: dict[str, Any] = dict(wanted)
        if wanted["oid"] in hub.unverified or not hub.store.has(wanted["oid"], wanted["size"]):
            signature = secrets.token_hex(8)
            hub.granted[signature] = (wanted["oid"], wanted["size"])
            entry["actions"] = {
                "upload": {"href": f"{hub.storage}/upload/{wanted['oid']}?signature={signature}"},
                "verify": {"href": f"{hub.endpoint}/api/lfs-verify/{repository.kind}s/{repository.name}"},
            }
        objects.append(entry)
    return answer({"transfer": "basic", "objects": objects})


@serves("storage", "PUT", "/upload/(?P<oid>[0-9a-f]{64})", None, "signature")
def lfs_put(hub: HubServer, request: Request, oid: str) -> Response:
    if request.headers.get("Authorization") is not None:
        raise HubError(400, "the storage host was sent a token")
    granted = hub.granted.get(request.query["signature"][0])
    if granted != (oid, len(request.body)) or hashlib.sha256(request.body).hexdigest() != oid:
        raise HubError(400, f"upload of {len(request.body)} bytes is not what was granted: {granted}")
    if not hub.store.has(oid, len(request.body)):  # another publisher may have sent and verified it
        hub.unverified.add(oid)
    hub.store.keep(request.body)
    return answer({}, headers={"ETag": f'"{oid}"'})


@serves("hub", "POST", rf"/api/lfs-verify/(?P<kind>model|dataset)s/{NAME}", "write")
def lfs_verify(hub: HubServer, request: Request, repository: Repository) -> Response:
    values = fields(request.json(), {"oid": str, "size": int})
    if not hub.store.has(values["oid"], values["size"]):
        raise HubError(400, f"{values['oid']} of {values['size']} bytes was not uploaded")
    hub.unverified.discard(values["oid"])
    return answer({"message": "OK"})


@serves("hub", "POST", f"{API}/commit/{REVISION}", "write", "create_pr hot_reload")
def commit(hub: HubServer, request: Request, repository: Repository, revision: str) -> Response:
    if request.headers.get("Content-Type") != "application/x-ndjson":
        raise HubError(400, f"Content-Type {request.headers.get('Content-Type')} must be application/x-ndjson")
    lines = [fields(json.loads(line), {"key": str, "value": dict}) for line in request.body.splitlines()]
    if not lines or [line["key"] for line in lines].count("header") != 1 or lines[0]["key"] != "header":
        raise HubError(400, "the first line, and no other, must be the header")
    header = fields(lines[0]["value"], {"summary": str, "description": str}, {"parentCommit": str})
    asked_for_review = request.query.get("create_pr") == ["1"]
    if not asked_for_review:
        hub.store.check_parent(repository, revision, header.get("parentCommit"))
    added: dict[str, Any] = {}
    deleted = []
    for line in lines[1:]:
        if line["key"] == "deletedFile":
            deleted.append(fields(line["value"], {"path": str})["path"])
            continue
        path, blob = added_file(hub, repository, line)
        if path in added:
            raise HubError(400, f"{path} stands twice in one commit")
        added[path] = blob
    if not header["summary"] or not (added or deleted):
        raise HubError(400, "a commit needs a summary and a change")
    if asked_for_review:
        revision = open_request(request, repository, header)
    done = hub.store.commit(repository, revision, added, tuple(deleted), header.get("parentCommit"), header["summary"])
    if not asked_for_review:  # several may propose at the same time
        repository.preuploaded.clear()
    found = {"success": True, "commitOid": done.oid, "commitUrl": f"{hub.endpoint}/{repository.name}/commit/{done.oid}"}
    if asked_for_review:
        number = revision.rpartition("/")[2]
        found["pullRequestUrl"] = f"{hub.endpoint}/{repository.name}/discussions/{number}"
    return answer(found)


def open_request(request: Request, repository: Repository, header: dict[str, Any]) -> str:
    """A new pull request on the parent the header names, or on main; its ref."""
    assert request.user is not None
    base = repository.resolve(header.get("parentCommit", "main"))
    number = max(repository.pulls, default=0) + 1
    repository.pulls[number] = {"title": header["summary"], "status": "open", "author": request.user["name"]}
    repository.branches[f"refs/pr/{number}"] = base.oid
    return f"refs/pr/{number}"


@serves("hub", "POST", rf"{API}/discussions/(?P<number>\d+)/status", "write")
def change_status(hub: HubServer, request: Request, repository: Repository, number: str) -> Response:
    values = fields(request.json(), {"status": str}, {"comment": str})
    pull = repository.pulls.get(int(number))
    if pull is None or values["status"] not in ("open", "closed") or pull["status"] == "merged":
        raise HubError(400, f"discussion {number} cannot become {values['status']}")
    pull["status"] = values["status"]
    event = {
        "id": "1",
        "type": "status-change",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "author": {"name": pull["author"]},
        "data": {"status": values["status"]},
    }
    return answer({"newStatus": event})


def added_file(hub: HubServer, repository: Repository, line: dict[str, Any]) -> tuple[str, Any]:
    """One added file of a commit, as the pre-upload asked for it."""
    value, mode = line["value"], repository.preuploaded.get(line["value"].get("path", ""))
    if line["key"] == "file":
        fields(value, {"path": str, "content": str, "encoding": str})
        if value["encoding"] != "base64" or mode != "regular":
            raise HubError(400, f"{value['path']}: encoding {value['encoding']}, pre-upload said {mode}")
        return safe_path(value["path"]), hub.store.small(base64.b64decode(value["content"], validate=True))
    if line["key"] != "lfsFile":
        raise HubError(400, f"{line['key']} is not an operation")
    fields(value, {"path": str, "algo": str, "oid": str, "size": int})
    there = hub.store.has(value["oid"], value["size"]) and value["oid"] not in hub.unverified
    if value["algo"] != "sha256" or mode != "lfs" or not there:
        raise HubError(400, f"{value['path']}: pre-upload said {mode}, or its content was never uploaded and verified")
    return safe_path(value["path"]), hub.store.large(value["oid"], value["size"])
