"""What is kept of every image beside the log: index and chunk table, so that a restore need not ask a
cartridge, and the samples of its transfer."""

from __future__ import annotations

from pathlib import Path

from nightferry.catalog.durable import catalog_errors, check_name, make_folder
from nightferry.errors import CatalogError
from nightferry.transfer.durable import replace_file


class IndexFiles:
    """``indexes/<image>.parquet`` and ``indexes/<image>.chunks`` in the catalog's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "indexes"

    def keep(self, image: str, index: bytes, chunks: bytes) -> None:
        """Keeps both, durable on return; the index comes last, so where it is the chunk table is too.

        Raises:
            CatalogError: they cannot be written.
        """
        check_name(image)
        with catalog_errors("write the index of an image in", self._folder):
            make_folder(self._folder)
            replace_file(self._path(image, "chunks"), chunks)
            replace_file(self._path(image, "parquet"), index)

    def keep_samples(self, image: str, lines: str) -> None:
        """Keeps ``indexes/<image>.jsonl``, one JSON object a line.

        Raises:
            CatalogError: it cannot be written.
        """
        check_name(image)
        with catalog_errors("write the samples of an image in", self._folder):
            make_folder(self._folder)
            replace_file(self._path(image, "jsonl"), lines.encode())

    def samples(self, image: str) -> str:
        """The image's samples as they were kept; empty when there are none.

        Raises:
            CatalogError: they cannot be read.
        """
        path = self._path(image, "jsonl")
        with catalog_errors("read", path):
            try:
                return path.read_text()
            except FileNotFoundError:
                return ""

    def has(self, image: str) -> bool:
        """Whether both files of the image are here."""
        with catalog_errors("look for the index of an image in", self._folder):
            return self._path(image, "parquet").exists() and self._path(image, "chunks").exists()

    def index_path(self, image: str) -> Path:
        """Where the image's index lies.

        Raises:
            CatalogError: it is not here.
        """
        return self._present(image, "parquet")

    def chunks(self, image: str) -> bytes:
        """The image's chunk table.

        Raises:
            CatalogError: it is not here, or cannot be read.
        """
        path = self._present(image, "chunks")
        with catalog_errors("read", path):
            return path.read_bytes()

    def _present(self, image: str, ending: str) -> Path:
        path = self._path(image, ending)
        with catalog_errors("look for", path):
            if path.exists():
                return path
        what = "index" if ending == "parquet" else "chunk table"
        raise CatalogError(
            f"the catalog has no {what} of image {image}",
            hint="every copy carries it as a side file; read it from one with --copy",
            subject=image,
        )

    def _path(self, image: str, ending: str) -> Path:
        return self._folder / f"{check_name(image)}.{ending}"
