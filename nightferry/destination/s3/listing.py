"""Whether a listing that comes in pages is all of it: one that was cut short must never pass for complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nightferry.errors import DestinationError

LIST_PAGES = 20_000
"""Pages of one listing, a thousand names each; a listing beyond has no end."""

_NEXT = {
    "list_objects_v2": {"ContinuationToken": "NextContinuationToken"},
    "list_object_versions": {"KeyMarker": "NextKeyMarker", "VersionIdMarker": "NextVersionIdMarker"},
    "list_multipart_uploads": {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"},
    "list_parts": {"PartNumberMarker": "NextPartNumberMarker"},
}
"""What the next page is asked for with, and what names it. Source: Amazon S3 API reference."""
_ENTRIES = {
    "list_objects_v2": ("Contents",),
    "list_object_versions": ("Versions", "DeleteMarkers"),
    "list_multipart_uploads": ("Uploads",),
    "list_parts": ("Parts",),
}


class ListingCut(DestinationError):
    """A listing that is not all of what is there. Nothing may be concluded from a name that it lacks."""


class Listing:
    """Looks at each page of one listing before it is believed.

    Args:
        what: Who lists what, for messages.
        verb: boto3's name of the listing.
        prefix: What every name must begin with.
        delimiter: What no name may have behind the prefix: the store gathers those.
    """

    def __init__(self, what: str, verb: str, prefix: str, delimiter: str) -> None:
        self._what = what
        self._verb = verb
        self._prefix = prefix
        self._delimiter = delimiter
        self._pages = 0
        self._seen: set[tuple[tuple[str, Any], ...]] = set()
        self._first: Any = None

    def following(self, page: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """How the next page is asked for; None when this was the last one.

        Raises:
            ListingCut: the page does not answer what was asked, or does not say how it goes on.
        """
        self._pages += 1
        self._require_names(page)
        truncated = page.get("IsTruncated")
        if truncated is None:
            raise self._cut("its answer does not say whether there is more")
        if not truncated:
            return None
        marks = {
            ours: page[theirs]
            for ours, theirs in _NEXT[self._verb].items()
            if page.get(theirs) not in (None, "")
        }
        if not marks:
            token = ", ".join(_NEXT[self._verb].values())
            raise self._cut(f"its answer says that there is more, and has no {token}")
        mark = tuple(sorted(marks.items()))
        if mark in self._seen or self._pages >= LIST_PAGES:
            raise self._cut("it has no end")
        self._seen.add(mark)
        return marks

    def _require_names(self, page: Mapping[str, Any]) -> None:
        names = list(self._names(page))
        count = page.get("KeyCount")
        gathered = [str(entry.get("Prefix", "")) for entry in page.get("CommonPrefixes", ())]
        if count is not None and int(count) != len(names) + len(gathered):
            raise self._cut(f"its answer announces {count} names and has {len(names) + len(gathered)}")
        for name in (*names, *gathered):
            if not name.startswith(self._prefix):
                raise self._cut(f"its answer has {name[:200]!r}, which is not below {self._prefix!r}")
        if self._delimiter and any(self._delimiter in name[len(self._prefix) :] for name in names):
            raise self._cut(f"its answer ignores the delimiter {self._delimiter!r}")
        first = next(iter(self._entries(page)), None)
        if first is not None and first == self._first:
            raise self._cut("the same page came twice")
        self._first = first if first is not None else self._first

    def _names(self, page: Mapping[str, Any]) -> Iterator[str]:
        if self._verb != "list_parts":
            yield from (str(entry.get("Key", "")) for entry in self._entries(page))

    def _entries(self, page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        for kind in _ENTRIES[self._verb]:
            yield from page.get(kind, ())

    def _cut(self, why: str) -> ListingCut:
        return ListingCut(
            f"{self._what} {self._prefix}: this listing is incomplete: {why}",
            hint="update the store, or reach it without the gateway that alters its listings",
        )
