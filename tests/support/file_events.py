"""What a kill at each file-system event leaves of a folder.

Events are what Python announces before it opens a file for writing, renames, removes or makes a folder, and each
`fsync`, below one folder. Before each event the folder is copied: a process that is killed there leaves these files. A
torn copy has only half of what was written since the event before.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
WHOLE = ".lock", "events.out"  # files that are not torn: without content, or of another thread


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not any(name in path.name for name in WHOLE)]


def _sizes(folder: Path) -> dict[int, int]:
    """By inode, which stays the same when a file is renamed."""
    return {path.stat().st_ino: path.stat().st_size for path in _files(folder)}


@dataclass
class Events:
    """The events below a folder. `on_event` is called before each of them."""

    folder: Path
    on_event: Callable[[int], None]
    seen: list[str] = field(default_factory=list)
    active: bool = True

    def hook(self, name: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if name == "open":
            path, mode, flags = args
            if not (flags & WRITING if isinstance(flags, int) else set(mode or "") & set("wxa+")):
                return
        elif name in NAMES:
            path = args[1] if name == "os.rename" else args[0]
        else:
            return
        if isinstance(path, str | bytes | os.PathLike):
            self.event(name, os.fsdecode(path))

    def event(self, name: str, path: str) -> None:
        if self.active and (Path(path) == self.folder or self.folder in Path(path).parents):
            self.seen.append(f"{name} {Path(path).relative_to(self.folder)}")
            self.active = False  # what happens here is not an event
            try:
                self.on_event(len(self.seen) - 1)
            finally:
                self.active = True

    @contextmanager
    def watch(self) -> Iterator[None]:
        sync = os.fsync

        def fsync(handle: int) -> None:
            self.event("fsync", os.readlink(f"/proc/self/fd/{handle}"))
            sync(handle)

        os.fsync = fsync
        sys.addaudithook(self.hook)  # cannot be removed, only be switched off
        try:
            yield
        finally:
            self.active, os.fsync = False, sync


@dataclass(frozen=True)
class Kill:
    """What a kill left: a copy of the folder."""

    event: int
    before: str
    torn: bool
    folder: Path

    def __str__(self) -> str:
        return f"killed before event {self.event} ({self.before}){', torn' * self.torn}"


def kills(folder: Path, copies: Path, work: Callable[[], Any], every: int = 1) -> list[Kill]:
    """Do some work in a folder, and return what a kill before each event (or every so many) would have left of it."""
    places: list[tuple[int, bool, Path]] = []
    sizes = _sizes(folder)

    def copy(event: int) -> None:
        nonlocal sizes
        before = {path: sizes.get(path.stat().st_ino, 0) for path in _files(folder)}
        written = {path: size for path, size in before.items() if path.stat().st_size > size}
        for torn in (False, True) if event % every == every // 2 else ():
            if torn and not written:
                continue
            target = copies / f"{event}{'t' * torn}"
            if folder.exists():
                shutil.copytree(folder, target)
            for path, size in written.items() if torn else ():
                os.truncate(target / path.relative_to(folder), (size + path.stat().st_size) // 2)
            places.append((event, torn, target))
        sizes = _sizes(folder)

    events = Events(folder, copy)
    with events.watch():
        work()
    return [Kill(event, events.seen[event], torn, target) for event, torn, target in places]


def kill_at(event: int, folder: Path, work: Callable[[], Any]) -> None:
    """Do some work in a folder, and kill this process before an event."""

    def die(current: int) -> None:
        if current == event:
            os.kill(os.getpid(), signal.SIGKILL)

    with Events(folder, die).watch():
        work()


def fail_from(event: int, folder: Path, work: Callable[[], Any], number: int) -> bool:
    """Do some work in a folder; from an event on, each one fails with an error of the system, such as a full disk.

    Returns whether an event failed. Files can still be removed.
    """
    failed = False

    def fail(current: int) -> None:
        nonlocal failed
        if current >= event and not events.seen[-1].startswith(("os.remove", "os.rmdir", "shutil")):
            failed = True
            raise OSError(number, os.strerror(number))

    events = Events(folder, fail)
    with events.watch():
        work()
    return failed
