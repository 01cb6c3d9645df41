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

HEARTBEAT_SILENT_S = 300.0
"""So long after its last heartbeat a process counts as dead. They come every 30 s, and a busy server drops some."""

FIRST_HEARTBEAT_S = 300.0
"""So long after a node took a run, and no heartbeat came, its process counts as one that never began."""

POLL_HEARTBEAT_S = 10.0

_NAME = "prefect.flow-run.heartbeat"


class Heartbeats:
    """The heartbeats of one flow run, from the moment that a node took it.

    Only that a new one came counts, never when it was sent: the node's clock may be wrong.
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
        self._heard: float | None = None
        self._looked = float("-inf")

    @property
    def began(self) -> bool:
        """Whether there was one at all: before that the process has perhaps not even started."""
        return self._newest is not None

    @property
    def patience_s(self) -> float:
        """How long nothing may be heard now."""
        return HEARTBEAT_SILENT_S if self.began else FIRST_HEARTBEAT_S

    def silent_s(self, client: SyncPrefectClient) -> float:
        """Seconds since the last one was heard of; without any, since this was first asked."""
        now = time.monotonic()
        if self._heard is None:
            self._heard = now
        if now - self._looked >= min(POLL_HEARTBEAT_S, self.patience_s / 3):
            self._looked = now
            newest = next((event.id for event in client.read_events(self._filter, limit=1).events), None)
            if newest is not None and newest != self._newest:
                self._newest, self._heard = newest, now
        return now - self._heard
