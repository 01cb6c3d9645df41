"""The catalog as a tape library sees it."""

from __future__ import annotations

from typing import Literal

from nightferry.catalog.query import Catalog
from nightferry.model.records import CartridgeRecord, DriveRecord


class CatalogRegister:
    """Implements ``destination.base.Register`` for one destination."""

    def __init__(self, catalog: Catalog, destination: str) -> None:
        self._catalog = catalog
        self._destination = destination

    def cartridge(self, barcode: str) -> CartridgeRecord | None:
        self._catalog.refresh()
        return self._catalog.latest(CartridgeRecord, f"{self._destination}/{barcode}")

    def cartridges(self) -> list[CartridgeRecord]:
        self._catalog.refresh()
        return self._catalog.cartridges(self._destination)

    def record(self, cartridge: CartridgeRecord, phase: Literal["intent", "result"] = "result") -> None:
        self._catalog.append(cartridge, phase)

    def record_drive(self, drive: DriveRecord) -> None:
        self._catalog.append(drive)

    def live_images(self, barcode: str) -> list[str]:
        return self._catalog.live_images(self._destination, barcode)
