"""Small disks, which are soon full."""

import contextlib
import os
import shutil
import subprocess

import pytest

PAGE = 4096


@contextlib.contextmanager
def small_disk(folder, kilobytes):
    """Lay a tmpfs over `folder` with what is in it now, and room for N KB more; skips where none may be."""
    kept = folder.with_name(f"{folder.name}.kept")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, kept, symlinks=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "podium", folder], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(kept)
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
