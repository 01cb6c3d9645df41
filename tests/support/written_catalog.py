"""A catalog with an event of each of the common kinds, in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.model.records import CopyRecord, FreedRecord, ImageRecord, RunRecord

AT = datetime(2026, 11, 10, 21, tzinfo=UTC)


def written_catalog(nights: int = 20) -> Catalog:
    """The catalog of so many nights of one store."""
    catalog = Catalog(MemoryStorage(), node="TEX-ACTV-1")
    for night in range(nights):
        at = AT + timedelta(days=night)
        run = f"{at:%Y%m%d}-TEX-BACK-1"
        image = f"{run}.SG1.a.L0"
        catalog.append(
            RunRecord(
                run=run,
                back_group="TEX-BACK-1",
                window=f"{at:%Y%m%d}",
                state="ended",
                result="whole",
                groups=("SG1",),
                selection={"SG1": ("a",)},
                node="TEX-ACTV-1",
                started=at,
                ended=at,
            )
        )
        catalog.append(
            ImageRecord(
                image=image,
                run=run,
                group="SG1",
                store="a",
                source_kind="files",
                state="whole",
                size_bytes=4096,
                payload_bytes=90,
                files=1,
                digest=f"{night:064x}",
                index_offset=512,
                index_bytes=100,
                index_digest=f"{night:064x}",
                path=f"SG1/a/{image}.tar",
                node="TEX-ACTV-1",
                started=at,
                ended=at,
            )
        )
        catalog.append(
            CopyRecord(
                image=image,
                destination="folder",
                epoch=1,
                state="verified",
                run=run,
                started=at,
                location={"image": image, "epoch": 1, "size_bytes": 4096},
            )
        )
        catalog.append(FreedRecord(image=image, reason="its policy's copies are verified", at=at))
    return catalog
