"""`nightferry hold`: images that must not expire."""

from __future__ import annotations

from cyclopts import App

from nightferry.cli.session import current

app = App(name="hold", help="Images that must not expire.")


@app.command
def add(image: str, /, *, reason: str) -> None:
    """Holds an image: nothing of it expires until the hold is removed.

    Parameters
    ----------
    image
        The image's name.
    reason
        Why; it is shown wherever the hold is.
    """
    from nightferry.copies.delivery import spread_decisions
    from nightferry.retention.expire import add_hold
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        record = add_hold(site, image, reason)
        spread_decisions(site)
    session.out.result(record.model_dump(mode="json"), f"{image} is held: {record.reason}")


@app.command
def remove(image: str, /, *, reason: str = "") -> None:
    """Lets an image expire again when its time comes.

    Parameters
    ----------
    image
        The image's name.
    reason
        Why, for the catalog.
    """
    from nightferry.copies.delivery import spread_decisions
    from nightferry.retention.expire import remove_hold
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        record = remove_hold(site, image, reason)
        spread_decisions(site)
    session.out.result(record.model_dump(mode="json"), f"{image} is no longer held")


@app.command(name="list")
def list_() -> None:
    """Lists the holds, the oldest first."""
    from nightferry.cli.output import table
    from nightferry.retention.expire import holds
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        found = holds(site)
        zone = site.file.tz
    rows = [[h.image, h.reason, h.who, f"{h.at.astimezone(zone):%Y-%m-%d %H:%M}"] for h in found]
    session.out.result(
        {"holds": [h.model_dump(mode="json") for h in found]},
        table(["image", "why", "who", "since"], rows) if rows else "nothing is held",
    )
