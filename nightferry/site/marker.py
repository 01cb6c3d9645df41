"""Destinations that one site has to itself: the marker is looked at before anything is done there.

A place is marked by its first use. One from before there were markers is adopted when the catalog knows a copy that
lies there; one that holds images and has no marker belongs to nobody knows whom, and is refused.
"""

from __future__ import annotations

from weakref import WeakSet

from nightferry.destination.base import Destination, Marked, SiteMark, nobody
from nightferry.destination.ours import MARKER, parse_marker, render_marker
from nightferry.errors import NotVisible, OtherSite
from nightferry.model.records import THERE, CopyRecord
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite, known_mark

_LOOKED_AT = 16
"""Copies of the catalog's that are looked for before an unmarked place counts as nobody's."""


class _Proved(WeakSet[Destination]):
    """Opened destinations that were seen to be this site's."""


def require_ours(site: OpenSite, destination: str, *, marking: bool = False) -> None:
    """Whether a destination is this site's; asked once of each, while it is open.

    Args:
        site: The site.
        destination: The destination's name.
        marking: Marks it where it bears no marker: its first use. Else nothing is written.

    Raises:
        OtherSite: catalog or destination are another site's, or nothing says whose the images there are.
        DestinationError: it cannot be looked at.
    """
    mark = known_mark(site.catalog, site.file.site.name)
    target = destination_of(site, destination)
    proved = site.part(_Proved)
    if target in proved:
        return
    if not isinstance(target, Marked):
        return
    try:
        text = target.marker()
    except NotVisible:
        # A key that may only write cannot look: it sets the marker where there is none.
        if marking:
            target.put_marker(render_marker(site.mark()))
            proved.add(target)
        return
    if text is None:
        _require_known(site, target, mark or nobody())
        if not marking:
            return
        mark = site.mark()
        target.put_marker(render_marker(mark))
        text = target.marker() or b""
    require_marker(destination, text, mark, site.file.site.name)
    proved.add(target)


def require_marker(destination: str, text: bytes, mark: SiteMark | None, site: str) -> SiteMark:
    """The marker of a destination, when it is this site's.

    Args:
        destination: Its name.
        text: What the marker says.
        mark: This site's; None: its catalog is new.
        site: What the site file calls it.

    Raises:
        OtherSite: it is not.
    """
    there = parse_marker(text)
    if there is None:
        raise OtherSite(
            f"destination {destination}: {MARKER} does not name its site",
            hint=f"restore {MARKER}; or, if everything there is this site's, remove it: it is written again",
            subject=destination,
        )
    if mark is not None and there.id == mark.id:
        return there
    raise OtherSite(
        f"destination {destination} belongs to {there}, not to {mark or f'site {site} with its new catalog'}",
        hint=f"if it is this site, and its catalog was lost: `nightferry catalog rebuild --copy {destination}`; "
        "otherwise give each site its own url",
        subject=destination,
    )


def _require_known(site: OpenSite, target: Marked, mark: SiteMark) -> None:
    """A place without a marker is empty, or holds a copy that the catalog knows.

    Raises:
        OtherSite: neither.
    """
    if next(target.images(), None) is None:
        return
    known = [c for c in site.catalog.all(CopyRecord) if c.destination == target.name and c.state in THERE]
    if any(target.has_copy(copy.location, copy.digest, mark) for copy in known[: -_LOOKED_AT - 1 : -1]):
        return
    raise OtherSite(
        f"destination {target.name} holds images that are not in the catalog of site {site.file.site.name}, "
        f"and no {MARKER} that names their site",
        hint=f"`nightferry catalog rebuild --copy {target.name}` adds them; otherwise give the site its own url",
        subject=target.name,
    )
