"""What could fail tonight, found before it does."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import nightferry
from nightferry.copies.origin import last_whole, new_line, origin_now
from nightferry.errors import CatalogError, ClockAhead, ClusterError, MoveFailed, NightferryError, OtherSite
from nightferry.model.findings import Finding
from nightferry.model.load import LoadedSite
from nightferry.model.records import THERE, CopyRecord
from nightferry.model.selection import diff
from nightferry.model.stores import FilesStore, SqliteStore, Store
from nightferry.plan.expectation import elsewhere
from nightferry.plan.placement import Layout
from nightferry.site.destinations import destination_of
from nightferry.site.marker import require_ours
from nightferry.site.nodes import active_node, has_disk, placement, working_on
from nightferry.site.opened import OpenSite
from nightferry.site.prefect_api import prefect_api
from nightferry.site.stamps import describe_clock, future_runs
from nightferry.staging.owed import FORGET_HINT, describe_undeliverable, lost, undeliverable
from nightferry.staging.ownership import require_own_disk
from nightferry.staging.room import free_room, may_free
from nightferry.units import counted, format_size

_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.ENOSYS)
"""What a file system that has no files without a name answers."""


CATALOG_BYTES = 16 << 20
CATALOG_FILES = 1000
"""What a night may add to the catalog before somebody looks again."""

PACKAGES = ("blocks", "tasks", "flows", "deployments")
"""Our packages whose names others may bear, too."""


def check(loaded: LoadedSite) -> list[Finding]:
    """Every finding, in the order in which a night would meet them. Makes only what any first use makes.

    A site that asks for what this release cannot do gets a finding for each such thing, and nothing else is
    looked at.
    """
    undelivered = loaded.site.undelivered()
    if undelivered:
        return [
            Finding("NF-SITE-001", "fail", f"not in this release: {what}", "remove it from the site file")
            for what in undelivered
        ]
    try:
        site = OpenSite(loaded)
    except OtherSite as error:
        return [Finding("NF-CAT-004", "fail", error.message, error.hint)]
    except NightferryError as error:
        return [Finding("NF-CAT-001", "fail", str(error), error.hint)]
    with site:
        return [
            *_stores(site),
            *_disks(site),
            *_selections(site),
            *_staging(site),
            *_elsewhere(site),
            *_catalog(site),
            *clock(site),
            *_owed(site),
            *_cluster(site),
            *hooks(site),
            *_destinations(site),
            *_retention(site),
            *_restore_roots(site),
            *packages(),
            *prefect_api(site.file.site.single_user),
        ]


def _owed(site: OpenSite) -> Iterator[Finding]:
    """What is owed and no night delivers, and what is lost."""
    site.catalog.refresh()
    for line in describe_undeliverable(undeliverable(site)):
        yield Finding("NF-OWED-001", "warn", line, FORGET_HINT)
    for image in lost(site):
        text = f"image {image.image} is lost: damaged or gone on staging, and no copy can be read"
        yield Finding(
            "NF-OWED-002", "fail", text, f"`nightferry forget {image.image} --reason TEXT` gives it up"
        )


def missing_stores(site: OpenSite, names: list[str]) -> list[str]:
    """Those of the stores (``GROUP/STORE``) whose path is not there on this node."""
    missing = []
    for name in names:
        store = site.file.store(name).store
        if isinstance(store, FilesStore | SqliteStore) and not os.path.lexists(store.path):
            missing.append(f"{name} ({store.path})")
    return missing


def serves(site: OpenSite, back_group: str) -> bool:
    """Whether the stores that are staged on a BACK group are to be seen on this node."""
    if site.local_node is None:
        return True
    try:
        return active_node(site, back_group) == site.local_node
    except ClusterError:
        return False  # the cluster's own check says why


def _elsewhere(site: OpenSite) -> Iterator[Finding]:
    """What another node must look at."""
    for back_group in site.file.back_groups:
        unseen = []
        if not serves(site, back_group.name):
            unseen.append("its stores")
        if not has_disk(site, back_group.name):
            unseen.append(f"its disk {back_group.path}")
        if unseen:
            yield Finding(
                "NF-NODE-007",
                "note",
                f"{back_group.name}: {' and '.join(unseen)} are not on {site.local_node}, and were not checked",
                "`nightferry check --everywhere` checks every node",
            )


def _stores(site: OpenSite) -> Iterator[Finding]:
    here = {b.name for b in site.file.back_groups if serves(site, b.name)}
    for ref in site.file.stores:
        store = ref.store
        if not isinstance(store, FilesStore | SqliteStore) or ref.group.back_group not in here:
            continue
        if not os.path.lexists(store.path):
            yield Finding(
                "NF-STORE-001",
                "fail",
                f"store {ref.name}: {store.path} is not there",
                "mount it, or correct the store's path",
            )
        elif not os.access(store.path, os.R_OK, effective_ids=True):
            yield Finding(
                "NF-STORE-002",
                "fail",
                f"store {ref.name}: {store.path} cannot be read by this user",
                "run as a user that may read it",
            )


def _disks(site: OpenSite) -> Iterator[Finding]:
    """Stores that do not lie where their last whole image was read from."""
    here = {b.name for b in site.file.back_groups if serves(site, b.name)}
    for ref in site.file.stores:
        if not ref.path or ref.group.back_group not in here or not os.path.lexists(ref.path):
            continue
        moved = new_line(site, ref)
        if moved:
            yield Finding("NF-STORE-004", "note", f"store {ref.name}: {moved}")
        before = last_whole(site, ref)
        now = origin_now(ref)
        if before is None or before.origin is None or now is None:
            continue
        for difference in elsewhere(now, before.origin):
            yield Finding(
                "NF-STORE-003",
                "fail",
                f"store {ref.name}: {difference}",
                "mount its disk; if it was replaced, tonight's image is suspect and holds the gate until approved",
            )


def _selections(site: OpenSite) -> Iterator[Finding]:
    for group in site.file.groups:
        fixed = site.catalog.selection(group.name)
        if fixed is None:
            continue
        changed = diff(fixed.stores, tuple(s.name for s in group.stores))
        cure = f"`nightferry selection fix {group.name}` adopts the site file's list; until then the fixed list applies"
        if changed.added:
            yield Finding(
                "NF-SEL-001",
                "warn",
                f"storage group {group.name}: not in the fixed selection, so not backed up: "
                f"{', '.join(changed.added)}",
                cure,
            )
        if changed.removed:
            yield Finding(
                "NF-SEL-002",
                "fail",
                f"storage group {group.name}: in the fixed selection but no longer in the site file, which holds "
                f"the gate: {', '.join(changed.removed)}",
                cure,
            )


def _staging(site: OpenSite) -> Iterator[Finding]:
    for back_group in site.file.back_groups:
        path = Path(back_group.path)
        if not has_disk(site, back_group.name):
            continue
        if not path.is_dir():
            yield Finding(
                "NF-STAGE-001",
                "fail",
                f"{back_group.name}: {path} is not there",
                "mount the BACK group's disk",
            )
            continue
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            yield Finding(
                "NF-STAGE-002",
                "fail",
                f"{back_group.name}: {path} cannot be written by this user",
                "make the folder writable for the user that runs the backup",
            )
            continue
        if site.file.staging.unbuffered and not _takes_unbuffered(site, back_group.name, path):
            yield Finding(
                "NF-STAGE-003",
                "warn",
                f"{back_group.name}: the file system of {path} refuses unbuffered writing",
                "stage one uses the page cache; put staging on ext4 or xfs",
            )
        yield from _room(site, back_group.name)
        sharing = [
            ref.name
            for ref in site.file.stores
            if ref.group.back_group == back_group.name and _same_disk(ref.store, path)
        ]
        if sharing:
            yield Finding(
                "NF-STAGE-005",
                "note",
                f"staging {path} shares its file system with {', '.join(sharing)}",
                "put staging on disks of its own, otherwise streaming to tape slows down the stores' users",
            )


def _room(site: OpenSite, back_group: str) -> Iterator[Finding]:
    free = free_room(site, back_group)
    expected = 0
    for group in site.file.groups_of(back_group):
        for store in group.stores:
            last = site.catalog.images(group.name, store.name)
            expected += last[0].size_bytes if last else 0
    if expected > free:
        free += sum(i.size_bytes for i in may_free(site, back_group, needed_bytes=expected - free))
    if expected > free:
        yield Finding(
            "NF-STAGE-004",
            "fail",
            f"{back_group}: tonight needs about {format_size(expected)}, "
            f"only {format_size(max(free, 0))} may be used",
            "free space on staging (deliver what is owed), or enlarge the disk",
        )


def _takes_unbuffered(site: OpenSite, back_group: str, folder: Path) -> bool:
    with working_on(site, back_group=back_group, cancel=site.cancel):
        try:
            # A file without a name: a check that is killed leaves nothing.
            os.close(os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_DIRECT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                return False
        else:
            return True
        probe = folder / f".nightferry-probe-{os.getpid()}"
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, 0o600))
        except OSError:
            return False
        finally:
            probe.unlink(missing_ok=True)
    return True


def _same_disk(store: Store, staging: Path) -> bool:
    path = getattr(store, "path", None)
    try:
        return path is not None and os.stat(path).st_dev == os.stat(staging).st_dev
    except OSError:
        return False


def _catalog(site: OpenSite) -> Iterator[Finding]:
    path = site.file.catalog_path
    if path is None:
        from nightferry.site.catalog_bucket import BucketStorage

        storage = site.catalog.storage
        try:
            if isinstance(storage, BucketStorage):
                storage.require_claims()
        except NightferryError as error:
            yield Finding("NF-CAT-003", "fail", str(error), error.hint)
    elif not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        yield Finding(
            "NF-CAT-002",
            "fail",
            f"the catalog {path} cannot be written by this user",
            "make it writable for that user",
        )
    else:
        yield from _room_of_catalog(path)
    for back_group in site.file.back_groups:
        try:
            require_own_disk(site, back_group.name)
        except CatalogError as error:
            yield Finding("NF-CAT-006", "fail", error.message, error.hint)
        except MoveFailed as error:
            yield Finding("NF-STAGE-006", "fail", error.message, error.hint)
        except ClusterError:
            continue  # what is wrong with the disk is told with the disks


def _room_of_catalog(path: Path) -> Iterator[Finding]:
    status = os.statvfs(path)
    if not status.f_blocks:
        return  # a file system that does not count
    blocks, files = (
        (status.f_bfree, status.f_ffree) if os.geteuid() == 0 else (status.f_bavail, status.f_favail)
    )
    free = blocks * status.f_frsize
    few_files = status.f_files > 0 and files < CATALOG_FILES
    if free >= CATALOG_BYTES and not few_files:
        return
    none = free < CATALOG_BYTES // 16 or (few_files and files < CATALOG_FILES // 16)
    yield Finding(
        "NF-CAT-005",
        "fail" if none else "warn",
        f"the file system of the catalog {path} has {format_size(free)} free"
        + (f", and room for {counted(files, 'more file')}" if few_files else ""),
        f"free room there: a night needs {format_size(CATALOG_BYTES)} and {CATALOG_FILES} files to be safe",
    )


def _cluster(site: OpenSite) -> Iterator[Finding]:
    yield from site.cluster.check()
    for back_group in site.file.back_groups:
        if not site.file.targets(back_group.name):
            yield Finding(
                "NF-CLUSTER-010",
                "fail",
                f"{back_group.name} has no passive node to move to",
                "name a passive node in [cluster] or in the BACK group's targets",
            )
    layout = Layout.of(site.file.nodes)
    try:
        placed = placement(site, site.cluster.view())
    except ClusterError:
        return  # the cluster's own check said why
    for name, node in placed.items():
        if node is not None and node == layout.primary and layout.alternates:
            yield Finding(
                "NF-CLUSTER-011",
                "warn",
                f"{name} moves to the primary {node}, the failover target of a service: no alternate can take it",
                "bring an alternate back, or set targets for the BACK group",
            )


def _unnamed_destinations(site: OpenSite) -> Iterator[Finding]:
    """Copies that no restore reads and no expiry removes any more."""
    named = {destination.name for destination in site.file.destinations}
    there = Counter(copy.destination for copy in site.catalog.all(CopyRecord) if copy.state in THERE)
    for name in sorted(there.keys() - named):
        yield Finding(
            "NF-DEST-004",
            "note",
            f"{counted(there[name], 'copy', 'copies')} at {name}, which is not in the site file: nothing reads "
            "or expires them",
            f"put the destination {name} back into the site file; under another name it is another destination",
        )


def _destinations(site: OpenSite) -> Iterator[Finding]:
    for settings in site.file.destinations:
        try:
            found = destination_of(site, settings.name).check()
            yield from found
            if all(finding.severity != "fail" for finding in found):
                require_ours(site, settings.name)
        except OtherSite as error:
            yield Finding("NF-DEST-003", "fail", error.message, error.hint)
        except NightferryError as error:
            yield Finding("NF-DEST-001", "fail", f"destination {settings.name}: {error}", error.hint)
    yield from _unnamed_destinations(site)
    for group in site.file.groups:
        if not group.copies:
            yield Finding(
                "NF-SITE-003",
                "warn",
                f"storage group {group.name} has no copies: its images exist on staging only",
                'list its destinations in copies = ["…"]',
            )


def _retention(site: OpenSite) -> Iterator[Finding]:
    for settings in site.file.destinations:
        retention = site.file.retention_of(settings.name)
        if retention.keeps_everything:
            yield Finding(
                "NF-RET-001",
                "note",
                f"destination {settings.name} keeps every image forever",
                "set numbers in [retention], or in the destination's own: keep_last, keep_daily …",
            )
        elif retention.keeps_one:
            yield Finding(
                "NF-RET-002",
                "warn",
                f"destination {settings.name} keeps a single image of each store: nothing older is left "
                "when that one is damaged, or came from a damaged store",
                "raise keep_last, or add keep_daily",
            )


def _restore_roots(site: OpenSite) -> Iterator[Finding]:
    for root in site.file.site.restore_roots:
        if not Path(root).is_dir():
            yield Finding(
                "NF-RESTORE-001",
                "warn",
                f"restore root {root} is not there",
                "create it, or take it out of restore_roots",
            )


def findings_exit_code(findings: list[Finding]) -> int:
    """2 when something fails, 3 when there are only warnings, else 0."""
    severities = {f.severity for f in findings}
    return 2 if "fail" in severities else 3 if "warn" in severities else 0


def clock(site: OpenSite) -> Iterator[Finding]:
    """A clock behind our own records would begin last night's window again."""
    found = future_runs(site)
    if found:
        yield Finding("NF-CLOCK-001", "fail", describe_clock(site, found), ClockAhead.default_hint)


def packages(find: Callable[[str], ModuleSpec | None] = find_spec) -> Iterator[Finding]:
    """Python takes the first package of a name on its path; a foreign ``flows`` would run instead of ours."""
    ours = Path(nightferry.__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = find(name)
        place = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
        if place != ours / name:
            yield Finding(
                "NF-SITE-002",
                "fail",
                f"the package {name} is {place or 'not there'}, not nightferry's",
                "remove the other package, or install nightferry into its own virtual environment",
            )


def hooks(site: OpenSite) -> Iterator[Finding]:
    """Hooks run with our rights: a program that others can write is theirs to command."""
    for hook in site.file.hooks:
        program = Path(hook.command[0])
        try:
            status = program.stat()
        except OSError as error:
            text = f"hook {hook.name}: {program}: {error.strerror}"
            yield Finding("NF-HOOK-001", "fail", text, "install the program, or correct its path")
            continue
        if not os.access(program, os.X_OK, effective_ids=True):
            text = f"hook {hook.name}: {program} cannot be run by this user"
            yield Finding("NF-HOOK-001", "fail", text, f"`chmod +x {program}`")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o002:
            text = f"hook {hook.name}: other users can write {program}"
            yield Finding("NF-HOOK-002", "fail", text, f"`chown root {program}`, `chmod o-w {program}`")
