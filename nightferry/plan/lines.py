"""Lines of images: a store's images that were read from one path.

Whoever changes a store's path begins a new line. What was read elsewhere is not compared with it, and takes no place
from it, nor it from the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from nightferry.model.records import ImageRecord


def lines(images: Sequence[ImageRecord], path: str = "") -> dict[str, str]:
    """Image → the path of its line.

    Args:
        images: All images of one store, the newest first. Those of a release that did not record a path count to
            the line of the oldest path on record.
        path: What stands for that while none is on record.
    """
    known = [image.origin.path for image in images if image.origin is not None]
    oldest = known[-1] if known else path
    return {image.image: image.origin.path if image.origin is not None else oldest for image in images}


def path_before(images: Sequence[ImageRecord], path: str) -> str:
    """The path of the store's newest image when that is another one than ``path``; else empty.

    Args:
        images: The store's images, the newest first.
        path: What its path is now, or what that of a newer image is.
    """
    newest = next((image.origin.path for image in images if image.origin is not None), path)
    return newest if newest != path else ""
