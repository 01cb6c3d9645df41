"""The night's report in the Prefect UI, made from our own records."""

from __future__ import annotations

import base64
import logging
from typing import Any

from prefect.artifacts import create_image_artifact, create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from nightferry.night.report import NightResult, report_markdown, throughput_png
from nightferry.site.opened import OpenSite

log = logging.getLogger(__name__)


def show_report(here: OpenSite, result: NightResult) -> None:
    """A Markdown artifact and the throughput plot. When the server is away the log says so."""
    key = f"night-{result.run.back_group.lower()}"
    try:
        create_markdown_artifact(report_markdown(result), key=key, description=result.sentence())
        png = throughput_png(here, result)
        if png is not None:
            url = "data:image/png;base64," + base64.b64encode(png).decode()
            create_image_artifact(
                image_url=url,
                key=f"throughput-{result.run.back_group.lower()}",
                description=f"Stage one of {result.run.run}: MB/s to staging, a line a store",
            )
    except Exception as error:  # noqa: BLE001 - a report that cannot be shown does not undo the night
        log.warning("the report is not shown in Prefect: %s", error)


def final_state(here: OpenSite, result: NightResult) -> State[Any]:
    """Shows the report and names a flow's last state after the night's outcome."""
    show_report(here, result)
    if result.is_whole:
        return Completed(message=result.sentence())
    return Failed(name=result.outcome, message=result.sentence())
