"""A file that people edit while the system runs: when it has changed, and is whole."""

from __future__ import annotations

from pathlib import Path

Signature = tuple[int, int, int]


class WatchedFile:
    """is_known: the file as it is now was read already, so that only what comes after is a change."""

    def __init__(self, path: Path, is_known: bool) -> None:
        self.path = path
        self._looked_at: Signature | str | None = "never"
        self._read: Signature | str | None = "never"
        if is_known:
            self._looked_at = self._read = self._signature()

    def has_changed(self) -> bool:
        """Whether the file is another one than was read last, and was so at the look before. Blocks for a stat.

        To be answered by reading it: the change is then over. A file that is gone is one more change.
        """
        now = self._signature()
        if now == self._read:
            return False
        if now != self._looked_at:
            # It may be half written: read it when it has stopped changing.
            self._looked_at = now
            return False
        self._read = now
        return True

    def _signature(self) -> Signature | None:
        """Modification time, size and inode (an editor may replace the file by another); None without a file."""
        try:
            found = self.path.stat()
        except (OSError, ValueError):
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
