"""The record of what was installed, ``/var/lib/cgpu/install.json``, and backups.

It is written before each change, so that an interrupted change can be undone: the path then has
either its earlier content, or the content that the journal records.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from cgpu_env import CgpuError
from cgpu_install.machine import BIN_DIR, Change, Content, Link, Machine
from cgpu_node.lockfile import LockFile
from cgpu_node.paths import write_atomically

FOLDER = "/var/lib/cgpu"
_FILE, _BACKUP = f"{FOLDER}/install.json", f"{FOLDER}/backup"
_LOCK = f"{FOLDER}.lock"  # not the folder, which every user can lock
_PATIENCE_SECONDS = 10.0
VERSION = 1
_NEW_FILE, _NEW_BACKUP = 0o644, 0o600


class Saved(NamedTuple):
    """A path that we changed.

    Attributes:
        engine: the engine for which it was changed.
        backup: whether there was a file before; its bytes are in the backup.
        link: the target of the link that was there before.
        left: the content that we left there, by ``fingerprint``.
        folders: the folders that were made for it, outermost first.
    """

    engine: str
    backup: bool
    link: str | None
    left: str
    folders: list[str]


def fingerprint(content: Content) -> str:
    """Return a word that is different for different contents."""
    if content is None:
        return "absent"
    if isinstance(content, Link):
        return f"link:{content.target}"
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Journal:
    """The journal of a machine; ``saved`` by the machine's paths.

    ``unread`` are the engines that may not have read what was changed for them: since the change,
    their commands have not succeeded.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.bin_dir = BIN_DIR
        self.saved: dict[str, Saved] = {}
        self.unread: set[str] = set()
        self.is_there = False
        self._undo: list[Callable[[], object]] = []
        self._text = text = machine.read_text(_FILE)
        if not text:
            return
        self.is_there = True
        try:
            data: dict[str, Any] = json.loads(text)
            if data["version"] != VERSION:
                raise CgpuError(f"{_FILE}: version {data['version']}: expected {VERSION}")
            self.bin_dir = data["bin_dir"]
            self.saved = {path: Saved(**saved) for path, saved in data["saved"].items()}
            self.unread = set(data.get("unread", ()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CgpuError(f"{_FILE}: damaged: expected what cgpu install wrote") from None

    def list_paths(self, engine: str) -> list[str]:
        """Return the files that were changed for an engine."""
        return [path for path, saved in self.saved.items() if saved.engine == engine]

    def list_engines(self) -> set[str]:
        """Return the engines for which something was changed."""
        return {saved.engine for saved in self.saved.values()}

    def is_untouched(self, path: str, now: Content) -> bool:
        """Whether ``path`` has the content that we left there."""
        return path in self.saved and self.saved[path].left == fingerprint(now)

    def read_original(self, path: str) -> Content:
        """Return the content that ``path`` had before us.

        Raises:
            CgpuError: the backup is gone.
        """
        saved = self.saved[path]
        if saved.link is not None:
            return Link(saved.link)
        if not saved.backup:
            return None
        backup = self._machine.read(f"{_BACKUP}{path}")
        if backup is None:
            raise CgpuError(f"{path}: its backup {_BACKUP}{path} is gone")
        return backup

    @contextlib.contextmanager
    def _lock_files(self, changes: Sequence[Change]) -> Iterator[None]:
        """Lock the files, and check that nothing changed since the plan.

        Errors of the file system become sentences.
        """
        for path in (_FILE, *(change.path for change in changes)):
            self._machine.check_folder(path)
        try:
            os.makedirs(self._machine.resolve_path(FOLDER), 0o755, exist_ok=True)
            lock, what = self._machine.resolve_path(_LOCK), "cgpu install or uninstall"
            with LockFile(lock, what, patience=_PATIENCE_SECONDS, temporary=True):
                try:
                    if self._machine.read_text(_FILE) != self._text:
                        raise CgpuError(f"{_FILE}: changed meanwhile: run this again")
                    for change in changes:
                        if self._machine.read_content(change.path) != change.before:
                            raise CgpuError(f"{change.path}: changed meanwhile: run this again")
                    yield
                finally:
                    with contextlib.suppress(OSError):
                        os.rmdir(self._machine.resolve_path(FOLDER))
        except OSError as error:
            raise CgpuError(f"{error.filename or FOLDER}: {error.strerror}") from None

    def install(self, changes: Sequence[Change], bin_dir: str) -> None:
        """Make the changes, and record where the programs are. Each change is recorded first.

        Raises:
            CgpuError: a file cannot be written, or has changed meanwhile.
        """
        is_elsewhere = bool(self.saved) and bin_dir != self.bin_dir
        if changes or is_elsewhere:
            with self._lock_files(changes), self._all_or_nothing():
                self.bin_dir = bin_dir
                if is_elsewhere:
                    self._save()
                self._install_changes(changes)

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore all files if one cannot be written, or a check refuses."""
        self._undo.clear()
        before = self._text, self.bin_dir, dict(self.saved), set(self.unread)
        try:
            yield
        except (OSError, CgpuError) as error:
            sentence = str(error)
            if isinstance(error, OSError):
                sentence = f"{error.filename or FOLDER}: {error.strerror}"
            try:
                while self._undo:
                    self._undo.pop()()
            except OSError as second:
                hint = f"{second.filename}: not given back: mend that, then: cgpu uninstall"
                raise CgpuError(sentence, hint=hint) from None
            self._text, self.bin_dir, self.saved, self.unread = before
            if isinstance(error, CgpuError):
                raise
            raise CgpuError(f"{sentence}; nothing was changed") from None

    def _change_content(self, path: str, content: Content) -> None:
        """Give ``path`` the content ``content``; ``_all_or_nothing`` may restore what was there."""
        before = self._machine.read_content(path)
        try:
            self._replace_content(path, content)
        finally:
            if self._machine.read_content(path) != before:
                self._undo.append(lambda: self._replace_content(path, before))

    def _install_changes(self, changes: Sequence[Change]) -> None:
        self.unread |= {change.engine for change in changes}
        for change in changes:
            folders = self._make_folders(change.path)
            known = self.saved.get(change.path)
            backup = isinstance(change.undo, bytes)
            if isinstance(change.undo, bytes):
                folder = os.path.dirname(f"{_BACKUP}{change.path}")
                self._undo.append(partial(self._remove_empty, folder, FOLDER))
                self._change_content(f"{_BACKUP}{change.path}", change.undo)
            self.saved[change.path] = Saved(
                change.engine,
                backup,
                change.undo.target if isinstance(change.undo, Link) else None,
                fingerprint(change.after),
                known.folders if known else folders,
            )
            self._save()
            self._change_content(change.path, change.after)

    def mark_read(self, engines: Iterable[str]) -> None:
        """Record that these engines have read what was changed for them.

        Raises:
            CgpuError: the journal cannot be written, or has changed meanwhile.
        """
        if not self.unread.isdisjoint(engines):
            with self._lock_files(()):
                self.unread.difference_update(engines)
                self._save()

    def uninstall(
        self,
        changes: Sequence[Change],
        engines: Sequence[str],
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """Make the changes, and forget what was done for ``engines``.

        Raises:
            CgpuError: a file cannot be written or has changed meanwhile, or ``check`` refuses; then
                every file is restored.
        """
        if changes or self.saved:
            with self._lock_files(changes):
                with self._all_or_nothing():
                    for change in changes:
                        self._change_content(change.path, change.after)
                    check()
                self._forget_engines(engines)

    def _forget_engines(self, engines: Sequence[str]) -> None:
        self.unread.difference_update(engines)
        for path, saved in reversed(list(self.saved.items())):  # inner folders before outer ones
            if saved.engine in engines:
                self._forget_path(path, saved)
        self._save()

    def _forget_path(self, path: str, saved: Saved) -> None:
        del self.saved[path]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._machine.resolve_path(f"{_BACKUP}{path}"))
        self._remove_empty(os.path.dirname(f"{_BACKUP}{path}"), FOLDER)
        for folder in reversed(saved.folders):
            with contextlib.suppress(OSError):
                os.rmdir(self._machine.resolve_path(folder))

    def _remove_empty(self, folder: str, top: str) -> None:
        with contextlib.suppress(OSError):
            while folder != top:
                os.rmdir(self._machine.resolve_path(folder))
                folder = os.path.dirname(folder)

    def _save(self) -> None:
        self._text = ""
        if not self.saved:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._machine.resolve_path(_FILE))
            # An interrupted install left it before it had recorded its backup.
            shutil.rmtree(self._machine.resolve_path(_BACKUP), ignore_errors=True)
            return
        saved = {path: saved._asdict() for path, saved in self.saved.items()}
        data = {"version": VERSION, "bin_dir": self.bin_dir, "saved": saved}
        data["unread"] = sorted(self.unread)
        self._text = f"{json.dumps(data, indent=1)}\n"
        self._change_content(_FILE, self._text.encode())

    def _make_folders(self, path: str) -> list[str]:
        missing = []
        folder = os.path.dirname(path)
        while not os.path.isdir(self._machine.resolve_path(folder)):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            os.mkdir(self._machine.resolve_path(folder), 0o755)
            self._undo.append(partial(self._remove_empty, folder, os.path.dirname(folder)))
        return missing[::-1]

    def _replace_content(self, path: str, content: Content) -> None:
        """Give ``path`` the content ``content`` in one step.

        Raises:
            OSError: it cannot be written. The error names ``path``, not the file that is written
                first.
        """
        try:
            new = _NEW_BACKUP if path.startswith(f"{_BACKUP}/") else _NEW_FILE
            self._write_content(self._machine.resolve_path(path), content, new)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    def _write_content(self, place: str, content: Content, new: int) -> None:
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
        elif isinstance(content, Link):
            temporary = f"{place}.new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            os.symlink(content.target, temporary)
            os.rename(temporary, place)
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            facts = os.lstat(place) if os.path.isfile(place) else None
            mode = new if facts is None else facts.st_mode & 0o7777
            write_atomically(place, content, mode, durable=True)
            if facts is not None:
                os.chown(place, facts.st_uid, facts.st_gid)
