"""The catalog as a tape library and a cluster see it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from nightferry.catalog.drives import DriveLeases
from nightferry.catalog.query import Catalog
from nightferry.clock import Clock
from nightferry.errors import BusyError
from nightferry.model.claim_records import ConstraintRecord
from nightferry.model.records import CartridgeRecord, DriveRecord


class CatalogRegister:
    """Implements ``destination.base.Register`` for one destination.

    Args:
        catalog: The catalog.
        destination: The destination's name.
        leases: Its drives' leases, if there are any: whoever lost a drive records nothing more of cartridges.
    """

    def __init__(self, catalog: Catalog, destination: str, leases: DriveLeases | None = None) -> None:
        self._catalog = catalog
        self._destination = destination
        self._permit = None if leases is None else leases.permit

    def cartridge(self, barcode: str) -> CartridgeRecord | None:
        self._catalog.refresh()
        return self._catalog.latest(CartridgeRecord, f"{self._destination}/{barcode}")

    def cartridges(self) -> list[CartridgeRecord]:
        self._catalog.refresh()
        return self._catalog.cartridges(self._destination)

    def record(self, cartridge: CartridgeRecord, phase: Literal["intent", "result"] = "result") -> None:
        self._catalog.append(cartridge, phase, permit=self._permit)

    def record_after(self, known: CartridgeRecord, cartridge: CartridgeRecord) -> bool:
        self._catalog.refresh()
        newest = self._catalog.latest_event(CartridgeRecord, cartridge.subject)
        if newest is None or self._catalog.latest(CartridgeRecord, cartridge.subject) != known:
            return False
        try:
            self._catalog.append(cartridge, expect=newest.sequence)
        except BusyError:
            return False
        return True

    def record_drive(self, drive: DriveRecord) -> None:
        self._catalog.append(drive)

    def live_images(self, barcode: str, given_up: Collection[str] = ()) -> list[str]:
        return self._catalog.live_images(self._destination, barcode, given_up)


class CatalogConstraints:
    """The catalog as the Pacemaker driver sees it: which constraints in the cluster are ours."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock

    def constraint(self, group: str) -> ConstraintRecord | None:
        self._catalog.refresh()
        return self._catalog.latest(ConstraintRecord, group)

    def place(self, group: str, node: str, *, run: str, before: str, without_fencing: bool) -> None:
        self._catalog.append(
            ConstraintRecord(
                group=group,
                node=node,
                before=before,
                state="placed",
                run=run,
                at=self._clock.now(),
                without_fencing=without_fencing,
            )
        )

    def take_back(self, group: str, reason: str) -> None:
        known = self.constraint(group)
        if known is not None:
            changes = {"state": "taken back", "reason": reason, "at": self._clock.now()}
            self._catalog.append(known.model_copy(update=changes))
