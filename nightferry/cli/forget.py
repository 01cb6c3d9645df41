"""`nightferry forget`: an operator's word that owed copies, or a lost image, are given up."""

from __future__ import annotations

from nightferry.cli.session import current


def forget(name: str, /, *, reason: str) -> None:
    """Gives up what an image still owes, or all that a store's images owe. No byte is removed by that.

    Parameters
    ----------
    name
        An image's name, or GROUP/STORE.
    reason
        Why; it is kept in the catalog.
    """
    from nightferry.site.opened import OpenSite
    from nightferry.staging.owed import forget_owed
    from nightferry.units import counted

    session = current()
    with OpenSite(session.load_site()) as site:
        records = forget_owed(site, name, reason)
    session.out.result(
        {"forgotten": [record.model_dump(mode="json") for record in records]},
        f"{counted(len(records), 'image')} given up: {', '.join(record.image for record in records)}",
    )
