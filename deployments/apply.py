"""Publishes a site to Prefect: its block, a work pool with a queue per node, the deployments, schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import time
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import get_current_settings
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

import flows
from blocks.site import Site, deployment_name, document_name, pool_name
from nightferry.errors import ConfigError
from nightferry.model.destinations import TapeSettings
from nightferry.model.load import LoadedSite
from nightferry.model.nodes import LocalClusterSettings
from nightferry.model.site import SiteFile
from nightferry.plan.window import night_start
from nightferry.site.prefect_api import FIX, why_unguarded

WORKER_ENVIRONMENT = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """One deployment as it will be. ``schedules``: slug → (cron line, parameters)."""

    entrypoint: str
    flow_name: str
    name: str
    description: str
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    schedules: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    queue: str | None = None
    """The work queue of the node whose work it is; None: whoever is there."""

    @property
    def full_name(self) -> str:
        return f"{self.flow_name}/{self.name}"

    def as_json(self) -> dict[str, Any]:
        return {
            "deployment": self.full_name,
            "entrypoint": self.entrypoint,
            "schedules": [{"slug": slug, "cron": cron} for slug, (cron, _) in self.schedules.items()],
        }


def plan_deployments(site: SiteFile) -> list[Planned]:
    """Every flow of this release as a deployment of the site. Pure.

    On a cluster, what belongs to one node is deployed once more for each node, onto that node's queue. A local cluster
    has one machine, and needs none of them.
    """
    name = document_name(site)
    back_groups = [b.name for b in site.back_groups]
    stores = [ref.name for ref in site.stores]
    groups = [g.name for g in site.groups]
    destinations = [d.name for d in site.destinations]
    nodes = [n.name for n in site.nodes]
    only = {"back_group": back_groups[0]} if len(back_groups) == 1 else {}
    nights = {}
    for back_group in back_groups:
        of_group = site.groups_of(back_group)
        if of_group:
            start = night_start(group.start for group in of_group)
            nights[back_group.lower()] = (f"{start.minute} {start.hour} * * *", {"back_group": back_group})
    by_hand = [
        Planned(
            "flows.two_stage.two_stage_backup",
            "two-stage-backup",
            name,
            "One night of a BACK group: stage one, gate, move, stage two.",
            {"back_group": back_groups, "groups[]": groups, "stores[]": stores, "accept_partial[]": stores},
            only,
            nights,
        ),
        Planned(
            "flows.move_group.move_group",
            "move-group",
            name,
            "The gated move of a BACK group's disk to a passive node.",
            {"back_group": back_groups, "to": nodes},
            only,
        ),
        Planned(
            "flows.stage_two.stage_two",
            "stage-two",
            name,
            "Makes the copies that a BACK group's staging still owes.",
            {"back_group": back_groups},
            only,
        ),
        Planned(
            "flows.gate.approve_gate",
            "approve-gate",
            name,
            "An operator's decision at a held gate; the night then continues.",
            {"stores[]": stores},
        ),
        Planned(
            "flows.restore.restore_files",
            "restore-files",
            name,
            "Restores files below a restore root.",
            {"store": stores, "copy_from": [*destinations, "staging"], "node": nodes},
        ),
        Planned(
            "flows.restore.restore_store",
            "restore-store",
            name,
            "Restores a whole store below a restore root.",
            {"store": stores, "copy_from": [*destinations, "staging"], "node": nodes},
        ),
        Planned(
            "flows.restore.restore_group",
            "restore-group",
            name,
            "Restores every store of a storage group below a restore root.",
            {"group": groups, "copy_from": [*destinations, "staging"], "node": nodes},
        ),
        Planned(
            "flows.verify.verify_copies",
            "verify-copies",
            name,
            "Reads copies back.",
            {"destination": destinations},
        ),
        Planned(
            "flows.check.check_everywhere",
            "check-everywhere",
            name,
            "Checks every node, and that they agree.",
        ),
        Planned(
            "flows.expire.expire",
            "expire",
            name,
            "Removes the copies that the retention does not keep.",
            {"destination": destinations},
            schedules=_daily(site.retention.expire_at),
        ),
        *(_media(name, [d.name for d in site.destinations if isinstance(d, TapeSettings)])),
    ]
    if isinstance(site.cluster, LocalClusterSettings):
        return by_hand
    placed = [
        *(each for each in by_hand if each.flow_name in ON_A_NODE),
        Planned("flows.stage_one.stage_one", "stage-one", name, "A night's stage one."),
        Planned("flows.check.check_node", "check-node", name, "What could fail tonight."),
    ]
    return by_hand + [_for_node(site, each, node) for node in nodes for each in placed]


ON_A_NODE = ("move-group", "stage-two", "approve-gate", "restore-files", "restore-store", "restore-group")
"""Flows by hand that run on the node that has the disk, or on the requested node."""


def _for_node(site: SiteFile, planned: Planned, node: str) -> Planned:
    return replace(
        planned,
        name=deployment_name(site, node),
        description=f"On {node}: {planned.description}",
        queue=node.lower(),
    )


def _media(name: str, libraries: list[str]) -> list[Planned]:
    """What only a site with a tape library has."""
    if not libraries:
        return []
    choices = {"library": libraries}
    return [
        Planned(
            "flows.media.media_inventory", "media-inventory", name, "Shows where each cartridge is.", choices
        ),
        Planned(
            "flows.media.media_import", "media-import", name, "Imports the cartridges in the ports.", choices
        ),
        Planned("flows.media.media_export", "media-export", name, "Moves cartridges to the ports.", choices),
    ]


def _daily(at: time | None) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """A schedule for each day at a time in site time; none when there is no time."""
    return {} if at is None else {"daily": (f"{at.minute} {at.hour} * * *", {})}


def load_flow(entrypoint: str) -> Flow[..., Any]:
    """``flows.two_stage.two_stage_backup`` → the flow object.

    Raises:
        ConfigError: it is something else.
    """
    module, _, attribute = entrypoint.rpartition(".")
    loaded = getattr(import_module(module), attribute)
    if not isinstance(loaded, Flow):
        raise ConfigError(f"{entrypoint} is not a flow")
    return loaded


def schema_with_choices(loaded: Flow[..., Any], choices: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The flow's parameter schema with the site's names as choices, so that the run form has pickers.

    A key ending in ``[]`` means the items of a list parameter.
    """
    schema: dict[str, Any] = parameter_schema(loaded).model_dump(exclude_unset=True)
    for key, values in choices.items():
        if not values:
            continue
        target = schema["properties"][key.removesuffix("[]")]
        kind = "array" if key.endswith("[]") else "string"
        options = [target, *target.get("anyOf", [])]
        for option in options:
            if option.get("type") == kind:
                place = option["items"] if kind == "array" else option
                place["enum"] = list(values)
    return schema


def require_own_flows() -> None:
    """Raises:
    ConfigError: another package called ``flows`` shadows ours on this machine.
    """
    found = Path(flows.__file__ or "").resolve()
    expected = (
        Path(import_module("nightferry").__file__ or "").resolve().parent.parent / "flows" / "__init__.py"
    )
    if found != expected:
        raise ConfigError(
            f"the package flows is {found}, not nightferry's",
            hint="run from a folder that has no flows/ of its own",
            subject="flows",
        )


def require_guarded_api(site: SiteFile) -> None:
    """Raises:
    ConfigError: the API lets in whoever reaches it, and the site does not say that nobody else can.
    """
    settings = get_current_settings()
    credentials = bool(settings.api.key or settings.api.auth_string)
    why = why_unguarded(settings.api.url or "", site.site.single_user, credentials)
    if why:
        raise ConfigError(why, hint=FIX, subject="PREFECT_API_URL")


def publish(loaded: LoadedSite) -> Site:
    """Saves the site file's text as the block.

    Raises:
        ConfigError: the block was edited in the UI since it was published.
    """
    name = document_name(loaded.site)
    try:
        known: Site | None = Site.of(name)
    except ConfigError:
        known = None
    if known is not None and known.published and known.digest != known.published:
        raise ConfigError(
            f"the block nightferry-site/{name} was edited in the Prefect UI",
            hint="copy the edit into the site file, delete the block, then deploy again",
            subject=name,
        )
    block = Site(text=loaded.text, published=loaded.digest)
    block.save(name, overwrite=True)
    return block


def apply(loaded: LoadedSite) -> list[Planned]:
    """Publishes block, pool, queues and deployments; running it again changes only what differs.

    Raises:
        ConfigError: see ``publish``, ``require_own_flows`` and ``require_guarded_api``.
    """
    loaded.site.require_delivered()
    require_own_flows()
    require_guarded_api(loaded.site)
    try:
        Site.register_type_and_schema()
        block = publish(loaded)
        planned = plan_deployments(loaded.site)
        with get_client(sync_client=True) as client:
            _pool(client, loaded.site)
            for deployment in planned:
                _deploy(client, loaded.site, block, deployment)
    except (PrefectHTTPStatusError, httpx.HTTPError) as error:
        raise ConfigError(f"the Prefect server refused: {error}") from error
    return planned


def _pool(client: SyncPrefectClient, site: SiteFile) -> None:
    name = pool_name(site)
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(
            WorkPoolCreate(
                name=name,
                type="process",
                description=f"nightferry site {site.site.name}",
                base_job_template=ProcessWorker.get_default_base_job_template(),
            )
        )
    for node in site.nodes:
        try:
            client.create_work_queue(name=node.name.lower(), work_pool_name=name)
        except ObjectAlreadyExists:
            continue


def _paused_schedules(client: SyncPrefectClient, planned: Planned) -> set[str]:
    """Slugs that an operator paused in the UI: deploying again is not a reason to begin them again."""
    try:
        known = client.read_deployment_by_name(planned.full_name)
    except ObjectNotFound:
        return set()
    return {schedule.slug for schedule in known.schedules if schedule.slug and not schedule.active}


def _deploy(client: SyncPrefectClient, site: SiteFile, block: Site, planned: Planned) -> None:
    loaded = load_flow(planned.entrypoint)
    # By its id, because the run form shows no other reference as chosen.
    reference = {"$ref": {"block_document_id": str(block._block_document_id)}}
    paused = _paused_schedules(client, planned)
    schedules = [
        DeploymentScheduleCreate(
            schedule=CronSchedule(cron=cron, timezone=site.site.timezone),
            parameters=dict(parameters),
            slug=slug,
            active=slug not in paused,
        )
        for slug, (cron, parameters) in planned.schedules.items()
    ]
    client.create_deployment(
        flow_id=client.create_flow_from_name(planned.flow_name),
        name=planned.name,
        description=planned.description,
        entrypoint=planned.entrypoint,
        work_pool_name=pool_name(site),
        work_queue_name=planned.queue,
        parameters={"site": reference, **planned.parameters},
        parameter_openapi_schema=schema_with_choices(loaded, planned.choices),
        enforce_parameter_schema=True,
        schedules=schedules,
        concurrency_options=ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.ENQUEUE),
        tags=["nightferry", document_name(site)],
        pull_steps=[],
        job_variables={"env": dict(WORKER_ENVIRONMENT)},
    )
