"""Damaged files: a byte flipped, the end cut off, or a byte flipped by the disk, which changes no time. Small disks."""

import contextlib
import os
import shutil
import subprocess

import pytest

from tests.faults import table

DISK_FULL = "disk full"
PAGE = 4096

FLIPPED, CUT, FLIPPED_UNSEEN = KINDS = ("flipped", "cut", "flipped unseen")


def damage(path, kind):
    """Change the file in place."""
    before = path.stat()
    with path.open("r+b") as stream:
        if kind == CUT:
            stream.truncate(before.st_size // 2)
            return
        at = before.st_size * 2 // 3
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))
    if kind == FLIPPED_UNSEEN:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextlib.contextmanager
def small_disk(folder, kilobytes):
    """Lay a tmpfs over `folder` with what is in it now, and room for N KB more; skips where none may be."""
    kept = folder.with_name(f"{folder.name}.kept")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, kept, symlinks=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "podium", folder], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(kept)
        table.record(DISK_FULL, table.NOT_RUN, str(folder), note="no right to mount")
        pytest.skip(f"a small disk needs the right to mount: {done.stderr.strip()}")
    try:
        shutil.copytree(kept, folder, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(kept)
        leave(folder, kilobytes)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def leave(disk, kilobytes):
    """Give the disk so much room beyond what is on it now."""
    state = os.statvfs(disk)
    used = (state.f_blocks - state.f_bfree) * state.f_frsize
    size = max(PAGE, -(-(used + kilobytes * 1024) // PAGE) * PAGE)  # 0 would mean: no limit
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)
