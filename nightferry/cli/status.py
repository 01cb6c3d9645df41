"""`nightferry status`: is every store restorable?"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from cyclopts import Parameter

from nightferry.cli.session import current
from nightferry.errors import ConfigError, NotInThisRelease
from nightferry.units import parse_duration


def status(*, max_age: str = "26h", policy: Annotated[bool, Parameter(show=False)] = False) -> int:
    """Says of every store what can be restored: green, amber or red.

    Exit code 0 when all are green, 3 when one is amber, 30 when one is red.

    Parameters
    ----------
    max_age
        How old the newest whole image may be.
    policy
        Not in this release.
    """
    from rich.text import Text

    from nightferry.cli.output import table
    from nightferry.health import status as ops
    from nightferry.site.opened import OpenSite

    if policy:
        raise NotInThisRelease("`nightferry status --policy` is not in this release", subject="--policy")
    session = current()
    try:
        age = timedelta(seconds=parse_duration(max_age))
    except ValueError as error:
        raise ConfigError(str(error), subject="--max-age") from None
    with OpenSite(session.load_site()) as site:
        stores = ops.status(site, max_age=age)
        zone = site.file.tz
    colours = {"green": "bold green", "amber": "yellow", "red": "bold red"}
    rows = [
        [
            Text(s.colour, style=colours[s.colour]),
            f"{s.group}/{s.store}",
            s.image.image if s.image else None,
            f"{s.image.started.astimezone(zone):%Y-%m-%d %H:%M}" if s.image else None,
            ", ".join(
                [*(["staging"] if s.staged else []), *(f"{c.destination} {c.state}" for c in s.copies)]
            ),
            f"{s.proved.astimezone(zone):%Y-%m-%d %H:%M}" if s.proved else None,
            s.reason or None,
        ]
        for s in stores
    ]
    code = ops.stores_exit_code(stores)
    session.out.result(
        {"stores": [s.as_json() for s in stores], "exit_code": code},
        table(["", "store", "last whole image", "begun", "copies", "proved", "why"], rows),
    )
    return code
