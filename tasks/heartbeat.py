"""Whether a flow run on another node still lives: by the heartbeats that its process sends to Prefect."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.events.filters import (
    EventFilter,
    EventNameFilter,
    EventOccurredFilter,
    EventOrder,
    EventResourceFilter,
)

SILENT_S = 300.0
"""So long after its last heartbeat a process counts as dead. They come every 30 s, and a busy server drops some."""

LOOK_EVERY_S = 10.0

_NAME = "prefect.flow-run.heartbeat"


class Heartbeats:
    """The heartbeats of one flow run.

    Only that a new one came counts, never when it was sent: the node's clock may be wrong. A run of which none was
    ever heard is not judged.
    """

    def __init__(self, run: UUID) -> None:
        self._filter = EventFilter(
            event=EventNameFilter(name=[_NAME]),
            resource=EventResourceFilter(id=[f"prefect.flow-run.{run}"]),
            # By Prefect's own default what a clock ahead of this one dates is not looked for.
            occurred=EventOccurredFilter(until=datetime.now(UTC) + timedelta(days=365)),
            order=EventOrder.DESC,
        )
        self._newest: UUID | None = None
        self._heard = 0.0
        self._looked = float("-inf")

    def silent_s(self, client: SyncPrefectClient) -> float:
        """Seconds since the last one was heard of; 0 while none ever was."""
        now = time.monotonic()
        if now - self._looked >= min(LOOK_EVERY_S, SILENT_S / 3):
            self._looked = now
            newest = next((event.id for event in client.read_events(self._filter, limit=1).events), None)
            if newest != self._newest:
                self._newest, self._heard = newest, now
        return now - self._heard if self._newest is not None else 0.0
