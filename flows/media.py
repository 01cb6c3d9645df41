"""Cartridges: what is where, what comes in, what goes out."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from blocks.site import Site
from nightferry.copies import media
from nightferry.errors import NightferryError
from nightferry.units import counted
from tasks.bridge import PrefectProgress, at_work, opened


@flow(name="media-inventory", flow_run_name="media inventory", persist_result=False)
def media_inventory(site: Site, library: str | None = None) -> State[Any]:
    """Asks the tape libraries what is where; the table artifact shows state and wear of every cartridge.

    Args:
        site: The site.
        library: Only this destination; empty: all.
    """
    with at_work():
        count = list_cartridges(site, library)
        return Completed(message=counted(count, "cartridge"))


@flow(name="media-import", flow_run_name="media import", persist_result=False)
def media_import(site: Site, library: str | None = None, reason: str = "") -> State[Any]:
    """Takes in what lies in the import/export ports; a cartridge that was offsite takes up its state again.

    Args:
        site: The site.
        library: Only this destination's ports; empty: all.
        reason: Kept in the catalog.
    """
    with at_work():
        taken = import_cartridges(site, library, reason)
        return Completed(message=f"imported: {', '.join(taken) or 'nothing'}")


@flow(name="media-export", flow_run_name="media export", persist_result=False)
def media_export(site: Site, barcodes: list[str], reason: str, library: str | None = None) -> State[Any]:
    """Carries cartridges to the ports, to be taken to a vault; they are offsite until they are imported.

    Args:
        site: The site.
        barcodes: The cartridges.
        reason: Where they go; kept in the catalog.
        library: The destination, when several have such a barcode.
    """
    with at_work():
        failed = [barcode for barcode in barcodes if not export_cartridge(site, barcode, reason, library)]
        if failed:
            return Failed(name="Partial", message=f"not exported: {', '.join(failed)}")
        return Completed(message=f"take out of the ports: {', '.join(barcodes)}")


@task(name="inventory", cache_policy=NO_CACHE, persist_result=False)
def list_cartridges(site: Site, library: str | None) -> int:
    """Returns how many cartridges there are; the table artifact lists them."""
    here = opened(site)
    rows = []
    for tape in media.tapes(here, library):
        for view in tape.inventory():
            line = media.view_json(view)
            line |= {"images": len(view.images), "alerts": ", ".join(view.alerts)}
            rows.append({"destination": tape.name, **line})
    create_table_artifact(rows, key="media", description=counted(len(rows), "cartridge"))
    return len(rows)


@task(name="import", cache_policy=NO_CACHE, persist_result=False)
def import_cartridges(site: Site, library: str | None, reason: str) -> list[str]:
    """Returns the barcodes that were taken in."""
    here = opened(site)
    return [
        view.barcode
        for tape in media.tapes(here, library)
        for view in tape.handling.take_in(media.why(reason))
    ]


@task(name="export", task_run_name="export {barcode}", cache_policy=NO_CACHE, persist_result=False)
def export_cartridge(site: Site, barcode: str, reason: str, library: str | None) -> bool:
    """False when it could not be carried to a port; the log says why."""
    here = opened(site)
    try:
        media.holding(here, barcode, library).handling.export(barcode, media.why(reason))
    except NightferryError as error:
        PrefectProgress().say(f"{barcode} is not exported: {error}; {error.hint}")
        return False
    return True
