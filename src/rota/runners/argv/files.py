"""The session's files as the gate sees them, and what one command touches of them.

`SessionFiles` is the view that the gate is given: `Listing` holds it in memory, `rota.runners.io.session_folder` reads
it from a folder. `Touched` resolves each path of one command in that view and keeps what is read and written.

Invariant: a path that `Touched` gives out lies in the session after every link on its way was followed.
"""

import posixpath
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rota.errors import ArgvNotAllowed, PathNotAllowed
from rota.runners.paths import session_path

HEAD_BYTES = 4096
"""What is read of a file to tell its format: each format here shows itself in its first kilobyte or two."""

TEXT_BYTES_MAX = 1024 * 1024
"""A list, a graph or subtitles that are longer than this are not judged but refused."""

PROBED_BYTES = 1024 * 1024 + 4096
"""What a demuxer's probe sees of a file at most: ffmpeg's PROBE_BUF_MAX, and more than it adds to it."""

LINKS_MAX = 8

READS_MAX = 20_000
"""Files that one command may read: twice the longest list, and a bound on what judging it costs."""

LOOKS_MAX = 5_000_000
"""Names that are held against patterns for one command, which takes a second or two: a packager's hundred patterns in a
session of 50,000 files."""

TEXTS_CHARACTERS_MAX = 2 * TEXT_BYTES_MAX
"""What is read of lists, graphs and subtitles for one command: a file may be named many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in the session's folder."""

    kind: Literal["file", "folder", "link", "other"]
    size: int | None = None
    head: bytes | None = None
    """The first `HEAD_BYTES`; None where they are not known: the name decides then."""
    target: str = ""
    """Where a link leads, as it is written in the link."""


class SessionFiles(Protocol):
    """A view of the session's folder that does not change while one command is judged."""

    def entry(self, path: str) -> Entry | None:
        """What a path names itself, links unfollowed; None where there is nothing."""

    def paths(self) -> Sequence[str]:
        """All names that are no folders."""

    def text(self, path: str) -> str | None:
        """The whole text of a file; None where it is unknown, no UTF-8 or longer than `TEXT_BYTES_MAX`."""

    def probed(self, path: str) -> bytes | None:
        """The first `PROBED_BYTES` of a file; None where they are unknown."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A session's files by name, in memory; what `rota runner check-argv` is given."""

    files: Sequence[str]
    contents: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    _known: frozenset[str] = field(init=False, repr=False, compare=False)
    _folders: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Look the names up once: a list may name thousands."""
        folders: set[str] = set()
        for name in self.paths():
            folder = posixpath.dirname(name)
            while folder and folder not in folders:
                folders.add(folder)
                folder = posixpath.dirname(folder)
        object.__setattr__(self, "_known", frozenset(self.files))
        object.__setattr__(self, "_folders", frozenset(folders))

    def entry(self, path: str) -> Entry | None:
        """A listed name, or a folder of one."""
        if path in self.links:
            return Entry(kind="link", target=self.links[path])
        text = self.contents.get(path)
        if text is not None:
            raw = text.encode(errors="surrogatepass")
            return Entry(kind="file", size=len(raw), head=raw[:HEAD_BYTES])
        if path in self._known:
            return Entry(kind="file")
        return Entry(kind="folder") if path in self._folders else None

    def paths(self) -> Sequence[str]:
        """The names of files and links."""
        return [*self.files, *self.contents, *self.links]

    def text(self, path: str) -> str | None:
        """The text that was given."""
        return self.contents.get(path)

    def probed(self, path: str) -> bytes | None:
        """The beginning of the text that was given."""
        text = self.contents.get(path)
        return None if text is None else text.encode(errors="surrogatepass")[:PROBED_BYTES]


@dataclass(slots=True)
class Touched:
    """What one command reads and writes."""

    files: SessionFiles
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    """Regular expressions of further names that may be written: numbered files, segments, logs of a pass."""
    made: list[str] = field(default_factory=list)
    """The names with numbers in them, as they are given."""
    _names: Sequence[str] | None = None
    _characters: int = 0
    _looks: int = 0

    def names(self, argument: str) -> Sequence[str]:
        """All names of the session that are no folders, to be held against a pattern; looked up once for a command.

        Raises:
            ArgvNotAllowed: The command has looked at too many already.
        """
        if self._names is None:
            self._names = self.files.paths()
        self._look(argument, len(self._names))
        return self._names

    def _look(self, argument: str, count: int) -> None:
        self._looks += 1 + count
        if self._looks > LOOKS_MAX:
            raise ArgvNotAllowed(argument, "the command has too many patterns of names for a session of this size")

    def text(self, argument: str, path: str) -> str:
        """The text of a file that the command reads.

        Args:
            argument: Where the file is named, for a message.
            path: Its path, resolved.

        Returns:
            The whole text.

        Raises:
            ArgvNotAllowed: It is unknown, no UTF-8, or too long.
        """
        text = self.files.text(path)
        if text is None or any("\ud800" <= character <= "\udfff" for character in text):
            raise ArgvNotAllowed(argument, f"{_short(path)} is no UTF-8 text of at most a MiB")
        self._characters += len(text)
        self._check_characters(argument)
        return text

    def probed(self, argument: str, path: str) -> bytes:
        """What a demuxer's probe may see of a file that the command reads, whatever its encoding.

        Args:
            argument: Where the file is named, for a message.
            path: Its path, resolved.

        Returns:
            Its first bytes.

        Raises:
            ArgvNotAllowed: They are unknown, or too many files are looked at like this.
        """
        head = self.files.probed(path)
        if head is None:
            raise ArgvNotAllowed(argument, f"{_short(path)} cannot be read")
        # One search goes through it, which takes a tenth of what judging a text of this size does.
        self._characters += len(head) // 10
        self._check_characters(argument)
        return head

    def _check_characters(self, argument: str) -> None:
        if self._characters > TEXTS_CHARACTERS_MAX:
            raise ArgvNotAllowed(
                argument, f"the texts that are named have more than {TEXTS_CHARACTERS_MAX:,} characters"
            )

    def resolve(self, argument: str, text: str) -> tuple[str, Entry | None]:
        """Find what a path names, through links.

        Args:
            argument: Where the path stands, for a message.
            text: The path as ffmpeg would see it, all escapes taken off.

        Returns:
            The path of the session without links, and what is there; None where nothing is.

        Raises:
            ArgvNotAllowed: The path is misspelt or leads outside.
        """
        try:
            path = session_path(text)
        except PathNotAllowed as error:
            raise ArgvNotAllowed(argument, f"{error} ({_short(text)})") from None
        for _ in range(LINKS_MAX):
            link = self._first_link(path)
            if link is None:
                return self._plain(argument, path)
            at, target = link
            path = self._follow(argument, path, at=at, target=target)
        raise ArgvNotAllowed(argument, f"too many links on the way of {_short(text)}")

    def read(self, argument: str, text: str, *, exists: bool = True) -> tuple[str, Entry | None]:
        """Resolve a file that the command reads.

        Args:
            argument: Where the path stands.
            text: The path.
            exists: Refuse a file that is not there.

        Returns:
            As `resolve`.

        Raises:
            ArgvNotAllowed: It leads outside, or is missing.
        """
        path, entry = self.resolve(argument, text)
        if entry is None and exists:
            raise ArgvNotAllowed(argument, f"there is no {_short(path)} in the session")
        if entry is not None and entry.kind == "folder":
            raise ArgvNotAllowed(argument, f"{_short(path)} is a folder")
        self._reads(argument, path)
        return path, entry

    def folder(self, argument: str, text: str) -> str:
        """Resolve a folder whose files are read, and each file in it; `.` is the session's own."""
        if re.fullmatch(r"\.(?:/+\.?)*", text):
            for name in self.names(argument):
                if "/" not in name:
                    self._reads(argument, self.resolve(argument, "./" + name)[0])
            return "."
        path, entry = self.resolve(argument, text)
        if entry is None or entry.kind != "folder":
            raise ArgvNotAllowed(argument, f"there is no folder {_short(path)} in the session")
        for name in self.names(argument):
            if name.startswith(path + "/"):
                self._reads(argument, self.resolve(argument, "./" + name)[0])
        return path

    def write(self, argument: str, text: str) -> str:
        """Resolve a file that the command writes; it need not be there."""
        path, entry = self.resolve(argument, text)
        if entry is not None and entry.kind == "folder":
            raise ArgvNotAllowed(argument, f"{_short(path)} is a folder")
        # Muxers that write a file whole write it under this name first.
        whole = self.files.entry(f"{path}.tmp")
        if whole is not None and whole.kind == "link":
            self.resolve(argument, f"./{path}.tmp")
        self.writes.append(path)
        return path

    def write_pattern(self, argument: str, text: str, pattern: str) -> str:
        """Resolve a name with numbers in it.

        Args:
            argument: Where it stands.
            text: The name as it is given to ffmpeg.
            pattern: A regular expression of the names that come of it, for the last component.

        Returns:
            The name, resolved.

        Raises:
            ArgvNotAllowed: It, or a link that has such a name already, leads outside.
        """
        path, _ = self.resolve(argument, text)
        folder = posixpath.dirname(path)
        whole = (re.escape(folder + "/") if folder else "") + pattern
        expression = re.compile(whole)
        for name in self.names(argument):
            if expression.fullmatch(name.removesuffix(".tmp")):
                self.resolve(argument, "./" + name)
        self.patterns.append(whole)
        self.made.append(path)
        return path

    def check_apart(self) -> None:
        """Refuse a command that writes what it reads: the input would be lost, or changed after it was judged.

        Raises:
            ArgvNotAllowed: It does.
        """
        # Folded, because two spellings are one file on macOS and Windows.
        read = {_folded(path): path for path in self.reads}
        for path in self.writes:
            if _folded(path) in read:
                raise ArgvNotAllowed(_short(path), "the command reads this file and would write it")
        for pattern in dict.fromkeys(self.patterns):
            self._look(_short(pattern), len(read))
            plain, blurred = re.compile(pattern), re.compile(_folded(pattern))
            for folded, path in read.items():
                if blurred.fullmatch(folded) or plain.fullmatch(path):
                    raise ArgvNotAllowed(_short(path), "the command reads this file and would write it")

    def _reads(self, argument: str, path: str) -> None:
        if len(self.reads) >= READS_MAX:
            raise ArgvNotAllowed(argument, f"the command reads more than {READS_MAX:,} files")
        self.reads.append(path)

    def _first_link(self, path: str) -> tuple[str, str] | None:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            at = "/".join(parts[:count])
            entry = self.files.entry(at)
            if entry is not None and entry.kind == "link":
                return at, entry.target
        return None

    def _follow(self, argument: str, path: str, *, at: str, target: str) -> str:
        # A link may lead upwards inside of the session; what it leads to is then spelt like any other path.
        folder = posixpath.dirname(at)
        joined = posixpath.normpath(posixpath.join(folder, target) + path[len(at) :])
        try:
            if posixpath.isabs(target):
                raise PathNotAllowed("it is absolute")
            return session_path("./" + joined if not joined.startswith("..") else joined)
        except PathNotAllowed as error:
            raise ArgvNotAllowed(argument, f"{_short(at)} is a link that leads outside: {error}") from None

    def _plain(self, argument: str, path: str) -> tuple[str, Entry | None]:
        entry = self.files.entry(path)
        if entry is not None and entry.kind == "other":
            raise ArgvNotAllowed(argument, f"{_short(path)} is neither a file nor a folder, or has a second name")
        return path, entry


def wildcard(pieces: Sequence[str]) -> str:
    """A regular expression of names that hold these pieces in order, with anything between them.

    It never goes back, so that no name takes long: the leftmost place of a piece in the middle is always right.
    """
    first, *middle = map(re.escape, pieces)
    last = middle.pop() if middle else None
    return first + "".join(f"(?>.*?{piece})" for piece in middle) + ("" if last is None else ".*" + last)


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()
