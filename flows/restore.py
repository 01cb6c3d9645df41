"""Restores asked for in the Prefect UI or by a deployment: only below the site's restore roots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from prefect import Flow, Task, flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from blocks.site import Site
from nightferry.errors import ConfigError
from nightferry.model.names import split_store
from nightferry.model.text import safe_markdown
from nightferry.restore import restore as ops
from nightferry.restore import restore_group as of_group
from nightferry.restore.tree import Writing
from nightferry.site.opened import OpenSite
from nightferry.units import counted, format_size
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened
from tasks.part import as_own
from tasks.place import run_on, runs_here


@flow(name="restore-files", flow_run_name="restore files of {store}", persist_result=False)
def restore_files(
    site: Site,
    store: str,
    patterns: list[str],
    to: str,
    as_of: datetime | None = None,
    image: str | None = None,
    copy_from: str | None = None,
    overwrite: Literal["never", "older"] = "never",
    node: str | None = None,
) -> State[Any]:
    """Brings files back.

    Args:
        site: The site.
        store: GROUP/STORE.
        patterns: Like .gitignore; a directory means all below it.
        to: A folder below one of the site's restore roots.
        as_of: The newest image whose start is not later.
        image: Exactly this image.
        copy_from: Only from this destination, or ``staging``.
        overwrite: What happens to files that are there. ``older`` only when the site file allows it
            (``restore_overwrite``), ``always`` only on the command line.
        node: The node to restore on; empty: the one that has staging.
    """
    request: dict[str, Any] = {
        "store": store,
        "patterns": patterns,
        "to": to,
        "as_of": as_of,
        "image": image,
        "copy_from": copy_from,
        "overwrite": overwrite,
    }
    return _carry_out(site, node, restore_files, restore_task, request)


@flow(name="restore-store", flow_run_name="restore {store}", persist_result=False)
def restore_store(
    site: Site,
    store: str,
    to: str,
    as_of: datetime | None = None,
    image: str | None = None,
    copy_from: str | None = None,
    node: str | None = None,
) -> State[Any]:
    """Brings a whole store back, beside the living one. In place is for the command line.

    Args:
        site: The site.
        store: GROUP/STORE.
        to: A folder below one of the site's restore roots.
        as_of: The newest image whose start is not later.
        image: Exactly this image.
        copy_from: Only from this destination, or ``staging``.
        node: The node to restore on; empty: the one that has staging.
    """
    request: dict[str, Any] = {
        "store": store,
        "to": to,
        "as_of": as_of,
        "image": image,
        "copy_from": copy_from,
    }
    return _carry_out(site, node, restore_store, restore_task, request)


@flow(name="restore-group", flow_run_name="restore {group}", persist_result=False)
def restore_group(
    site: Site,
    group: str,
    to: str,
    as_of: datetime | None = None,
    copy_from: str | None = None,
    node: str | None = None,
) -> State[Any]:
    """Brings every store of a storage group back, each to a folder of its name.

    Args:
        site: The site.
        group: The storage group.
        to: A folder below one of the site's restore roots.
        as_of: The newest images whose start is not later.
        copy_from: Only from this destination, or ``staging``.
        node: The node to restore on; empty: the one that has staging.
    """
    request: dict[str, Any] = {"group": group, "to": to, "as_of": as_of, "copy_from": copy_from}
    return _carry_out(site, node, restore_group, restore_group_task, request)


def _carry_out(
    site: Site, node: str | None, flow: Flow[..., Any], work: Task[..., bool], request: dict[str, Any]
) -> State[Any]:
    """Does the work here, or the flow on the node that it is for; both take what was asked."""
    what, to = request.get("store") or request["group"], request["to"]
    with at_work():
        here = opened(site)
        group = request.get("group") or split_store(what)[0]
        elsewhere = _elsewhere(here, site, group, node, flow, request)
        if elsewhere is not None:
            return elsewhere
        require_overwrite(here, request.get("overwrite", "never"))
        below_a_root(here, to)
        if not work(site, **request):
            return Failed(name="Partial", message="something was left out; see the report artifact")
        return Completed(message=f"{what} is back below {to}")


def _elsewhere(
    here: OpenSite, site: Site, group: str, node: str | None, flow: Flow[..., Any], request: dict[str, Any]
) -> State[Any] | None:
    """The restore on the other node that it is for, ended; None when it is for this one."""
    if node is None:
        known = next((g for g in here.file.groups if g.name == group), None)
        # What has left the site file has no staging any more: any node can restore it.
        wanted = here.cluster.where(known.back_group) if known is not None else here.local_node
    else:
        wanted = here.file.node(node).name
    if wanted is None or runs_here(here, wanted):
        return None
    return as_own(run_on(wanted, flow, site, key=f"by hand/{uuid4()}", node=wanted, **request))


def below_a_root(here: OpenSite, to: str) -> tuple[Path, Path]:
    """The target, and the restore root it lies below; from there on no link is followed.

    Raises:
        ConfigError: it does not lie below one of the site's restore roots.
    """
    target = Path(os.path.normpath(to))
    roots = here.file.site.restore_roots
    root = next((r for r in roots if target == r or r in target.parents), None)
    if root is None:
        named = ", ".join(str(r) for r in roots) or "none are configured"
        raise ConfigError(
            f"{target} is not below a restore root of the site ({named})",
            hint="choose a folder below one, add a root to the site file, or restore by command line",
            subject="to",
        )
    return target, root


def require_overwrite(here: OpenSite, overwrite: str) -> None:
    """Raises:
    ConfigError: what is there would be replaced, and the site does not allow it.
    """
    if overwrite != "never" and not here.file.site.restore_overwrite:
        raise ConfigError(
            "restores from the Prefect UI replace nothing at this site",
            hint="choose never or an empty folder, restore by command line, or set restore_overwrite under [site]",
            subject="overwrite",
        )


@task(name="restore", task_run_name="restore {store}", cache_policy=NO_CACHE, persist_result=False)
def restore_task(
    site: Site,
    store: str,
    to: str,
    as_of: datetime | None,
    image: str | None,
    copy_from: str | None,
    patterns: Sequence[str] = (),
    overwrite: Literal["never", "older"] = "never",
) -> bool:
    """The restore itself; True when nothing was left out."""
    here = opened(site)
    group, name = split_store(store)
    target, root = below_a_root(here, to)
    found = ops.find_image(here, group, name, as_of=as_of, image=image)
    plan = ops.plan_restore(here, found, patterns, target, copy=copy_from)
    writing = Writing(overwrite, below=root)
    done = ops.restore(here, plan, writing=writing, progress=PrefectProgress(), cancel=CANCEL)
    _show(store, [f"# {safe_markdown(store)} restored", "", *_lines(done)], target)
    return done.is_complete


@task(name="restore-group", task_run_name="restore {group}", cache_policy=NO_CACHE, persist_result=False)
def restore_group_task(
    site: Site, group: str, to: str, as_of: datetime | None, copy_from: str | None
) -> bool:
    """The restore of all stores, in one pass over each cartridge; True when nothing was left out.

    Raises:
        NightferryError: of the first store that is not back, when every other one was tried.
    """
    here = opened(site)
    target, root = below_a_root(here, to)
    plans = of_group.plan_group(here, group, target, as_of=as_of, copy=copy_from)
    writing = Writing(below=root)
    stores = of_group.restore_group(here, plans, writing=writing, progress=PrefectProgress(), cancel=CANCEL)
    lines = [f"# {safe_markdown(group)} restored"]
    for one in stores:
        summary = (
            _lines(one.done) if one.done is not None else [f"Not restored: {safe_markdown(str(one.error))}"]
        )
        lines += ["", f"## {safe_markdown(one.store)}", "", *summary]
    _show(group, lines, target)
    for one in stores:
        if one.error is not None:
            raise one.error
    return all(one.exit_code == 0 for one in stores)


def _lines(done: ops.Restored) -> list[str]:
    """What became of one store, in Markdown."""
    report = done.report
    lines = [
        f"Image `{done.plan.image.image}` from **{done.copy}** to `{safe_markdown(str(done.plan.target))}`: "
        f"{counted(report.files, 'file')}, {format_size(report.size_bytes)}."
    ]
    if done.damaged:
        lines.append(f"\nTried before and not usable: {', '.join(done.damaged)}.")
    for path in report.skipped[:50]:
        lines.append(f"- is already there, kept: `{safe_markdown(path)}`")
    for path, why in report.refused[:50]:
        lines.append(f"- refused: `{safe_markdown(path)}` — {safe_markdown(why)}")
    for path, what in report.losses[:50]:
        lines.append(f"- not kept: `{safe_markdown(path)}` — {safe_markdown(what)}")
    return lines


def _show(what: str, lines: list[str], target: Path) -> None:
    create_markdown_artifact("\n".join(lines), key="restore", description=f"{what} to {target}")
