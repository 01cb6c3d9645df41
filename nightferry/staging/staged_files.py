"""The files of one image on staging, found by the image's name alone.

No record says where they lie. The folder of the store is reached by descriptor from the staging path on, one name at a
time and through no symbolic link; what is opened in it is a regular file of its own name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from nightferry.errors import ConfigError, IntegrityError
from nightferry.image.format import TAIL_BYTES, ImageEnd
from nightferry.model.names import is_safe, parse_image_name
from nightferry.model.records import ImageRecord
from nightferry.transfer.below import LINK, folder_below, open_folder
from nightferry.transfer.durable import durable_rename, remove_dead_drafts, replace_file
from nightferry.transfer.reading import FileReader
from nightferry.transfer.regular import open_regular, read_regular

Ending = Literal[".tar", ".tar.partial", ".tar.damaged", ".chunks", ".meta.json"]
ENDINGS: tuple[Ending, ...] = (".tar.partial", ".tar.damaged", ".tar", ".chunks", ".meta.json")

META_BYTES = 1 << 20
"""``meta.json`` is no longer."""


class StagedFiles:
    """``<image>.tar`` with ``.chunks`` and ``.meta.json`` beside it, in ``<staging path>/<group>/<store>``.

    Args:
        root: The BACK group's staging path.
        image: The image's name.
        leased: Held while a folder on the disk is open; may refuse with a ``ClusterError``. Who keeps a file open
            holds a lease of its own.

    Raises:
        ConfigError: it is not an image's name.
    """

    def __init__(
        self,
        root: Path,
        image: str,
        *,
        leased: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        name = parse_image_name(image)
        self.image = image
        self._root = root
        self._leased = leased
        self._names = (name.group, name.store)

    @property
    def tar(self) -> Path:
        """Where the image lies, for people; nothing is opened by it."""
        return self._path(".tar")

    def make_folder(self, mode: int) -> None:
        """Makes the store's folder below the staging path, which must be there.

        Raises:
            OSError: it cannot be made.
        """
        with self._leased():
            os.close(open_folder(self._root, self._names, mode=mode))

    def size_bytes(self, ending: Ending = ".tar") -> int | None:
        """A file's length; None when there is no regular file of that name.

        Raises:
            OSError: the disk cannot say.
        """
        try:
            with self._folder() as folder:
                status = os.lstat(folder / self._name(ending))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == LINK:
                return None
            raise
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self, ending: Ending, most_bytes: int) -> bytes:
        """All of a small file.

        Raises:
            OSError: it is not there, not a regular file, or longer.
        """
        with self._folder() as folder:
            return read_regular(folder / self._name(ending), most_bytes)

    def reader(self) -> FileReader:
        """The image.

        Raises:
            MediumDamaged, Unavailable: see ``FileReader``.
        """
        return FileReader(self.tar, opened=self._open)

    def create(self, ending: Ending, mode: int) -> int:
        """A new file, which the caller closes.

        Raises:
            OSError: there is one already, or it cannot be made.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._folder() as folder:
            return os.open(folder / self._name(ending), flags, mode)

    def replace(self, ending: Ending, data: bytes) -> None:
        """Puts ``data`` in the place of a file, durable on return.

        Raises:
            OSError: it cannot be written.
        """
        with self._folder() as folder:
            replace_file(folder / self._name(ending), data)

    def rename(self, ending: Ending, new: Ending) -> None:
        """Renames a file that is on the disk, durable on return.

        Raises:
            OSError: it is not there, or cannot be renamed.
        """
        with self._folder() as folder:
            durable_rename(folder / self._name(ending), folder / self._name(new))

    def remove(self, *endings: Ending) -> None:
        """Removes files in that order; those that are not there are fine.

        Raises:
            OSError: one cannot be removed.
        """
        try:
            with self._folder() as folder:
                for ending in endings:
                    (folder / self._name(ending)).unlink(missing_ok=True)
        except FileNotFoundError:
            return

    def clear_drafts(self) -> None:
        """Removes what writers that died left in the store's folder.

        Raises:
            OSError: the folder cannot be read, or written.
        """
        try:
            with self._folder() as folder:
                remove_dead_drafts(folder)
        except FileNotFoundError:
            return

    def record(self) -> ImageRecord:
        """What ``meta.json`` says.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not a record of this image.
        """
        try:
            found = ImageRecord.model_validate_json(self.read(".meta.json", META_BYTES))
        except ValidationError as error:
            raise ValueError(f"{self._name('.meta.json')} is not a record of an image") from error
        if found.image != self.image:
            raise ValueError(f"{self._name('.meta.json')} belongs to {found.image}")
        return found

    def is_of(self, record: ImageRecord) -> bool:
        """Whether what lies here was staged as this very image: a record that came from elsewhere may only have
        its name. Where ``meta.json`` is damaged or gone, the image's own end says so."""
        try:
            return self.record().digest == record.digest
        except (OSError, ValueError):
            return any(self._ends_as(record, ending) for ending in (".tar", ".tar.damaged"))

    def _ends_as(self, record: ImageRecord, ending: Ending) -> bool:
        try:
            fd = self._open(ending)
        except OSError:
            return False
        try:
            size_bytes = os.fstat(fd).st_size
            end = ImageEnd.decode(os.pread(fd, TAIL_BYTES, max(0, size_bytes - TAIL_BYTES)), size_bytes)
        except (OSError, IntegrityError):
            return False
        finally:
            os.close(fd)
        return (size_bytes, end.index_bytes, end.index_digest) == (
            record.size_bytes,
            record.index_bytes,
            record.index_digest,
        )

    def _open(self, ending: Ending = ".tar") -> int:
        with self._folder() as folder:
            return open_regular(folder / self._name(ending))

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """The store's folder under a path that leads to its descriptor, whatever is moved meanwhile."""
        with self._leased(), folder_below(self._root, self._names) as folder:
            yield folder

    def _name(self, ending: Ending) -> str:
        return f"{self.image}{ending}"

    def _path(self, ending: Ending) -> Path:
        return self._root.joinpath(*self._names, self._name(ending))


def staged_names(root: Path) -> Iterator[tuple[str, Ending]]:
    """Image and ending of every regular file on staging that bears the name of an image of the store in whose folder it
    lies.

    Raises:
        OSError: a folder cannot be read.
    """
    for group, store, names in _store_folders(root):
        for name in names:
            image, ending = _split(name)
            if ending is not None and _lies_in(image, group, store):
                yield image, ending


def _store_folders(root: Path) -> Iterator[tuple[str, str, list[str]]]:
    for group in _folders_in(root, ()):
        for store in _folders_in(root, (group,)):
            fd = open_folder(root, (group, store))
            try:
                with os.scandir(fd) as entries:
                    names = sorted(e.name for e in entries if e.is_file(follow_symlinks=False))
            finally:
                os.close(fd)
            yield group, store, names


def _folders_in(root: Path, names: tuple[str, ...]) -> list[str]:
    fd = open_folder(root, names)
    try:
        with os.scandir(fd) as entries:
            return sorted(e.name for e in entries if is_safe(e.name) and e.is_dir(follow_symlinks=False))
    finally:
        os.close(fd)


def _split(name: str) -> tuple[str, Ending | None]:
    """A staged file's name → (image, ending); no ending when it is none of ours."""
    for ending in ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending), ending
    return name, None


def _lies_in(image: str, group: str, store: str) -> bool:
    try:
        name = parse_image_name(image)
    except ConfigError:
        return False
    return (name.group, name.store) == (group, store)
