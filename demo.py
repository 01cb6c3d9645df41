"""The main job on a small real site: a night and a restore, compared by outside tools. ``make demo`` runs it.

Everything is done as a user would do it: by the ``nightferry`` command, in a folder of its own
(``./demo-site``).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

HERE = Path("demo-site").resolve()
SITE = HERE / "nightferry.toml"

SITE_FILE = """\
# The demo's site: two storage groups on one BACK group, a virtual tape library and an object folder.
schema = 1

[site]
name = "DEMO"
catalog = "{here}/catalog"
timezone = "UTC"
restore_roots = ["{here}/restored"]

[cluster]
kind = "local"
nodes = ["DEMO-ACTV-1", "DEMO-PASS-1", "DEMO-PASS-2"]

[staging]
path = "{here}/backup"
keep_free = "1 %"

[[groups]]
name = "SG1"
mail_group = "DEMO-MAIL-1"
back_group = "DEMO-BACK-1"
start = "00:00"
copies = ["tape", "objects"]

  [[groups.stores]]
  name = "priv1"
  kind = "files"
  path = "{here}/stores/SG1/priv1"
  exclude = ["*.tmp"]

  [[groups.stores]]
  name = "priv2"
  kind = "files"
  path = "{here}/stores/SG1/priv2"

[[groups]]
name = "SG2"
mail_group = "DEMO-MAIL-1"
back_group = "DEMO-BACK-1"
start = "00:00"
copies = ["tape", "objects"]

  [[groups.stores]]
  name = "mailbox"
  kind = "sqlite"
  path = "{here}/stores/SG2/mailbox.db"

  [[groups.stores]]
  name = "shares"
  kind = "files"
  path = "{here}/stores/SG2/shares"

[[destinations]]
name = "tape"
kind = "tape"
library = {{ kind = "virtual", path = "{here}/vtl", drives = 2, slots = 8, cartridge_bytes = "64 MiB" }}
pool = {{ name = "daily", barcodes = ["*"], autolabel = "blank", wait_for_media = "1m" }}

[[destinations]]
name = "objects"
kind = "fsspec"
url = "file://{here}/objects"
"""


def main() -> int:
    if HERE.exists():
        if not SITE.exists():
            print(f"{HERE} is there and is not the demo's: move it away first", file=sys.stderr)
            return 2
        nightferry("server", "stop")
        shutil.rmtree(HERE)
    title("A small site with real stores")
    make_stores()
    for folder in ("backup", "objects", "restored", "catalog"):
        (HERE / folder).mkdir()
    SITE.write_text(SITE_FILE.format(here=HERE))
    SITE.chmod(0o600)
    print(f"{SITE}: storage groups SG1 and SG2, staged on {HERE}/backup")
    before = sums(HERE / "stores" / "SG1" / "priv1")

    title("Could anything fail tonight?")
    nightferry("check", allowed=(0, 3))

    title("The night: stage one, gate, move, stage two")
    nightferry("backup")

    title("Is every store restorable?")
    nightferry("status")
    nightferry("media", "list")

    title("The disaster: store SG1/priv1 is gone")
    store = HERE / "stores" / "SG1" / "priv1"
    shutil.rmtree(store)
    print(f"rm -r {store}")

    title("Back from tape, in place")
    nightferry("restore", "store", "SG1/priv1", "--in-place", "--yes", "--copy", "tape")
    after = sums(store)
    if before != after:
        print("sha256sum: the restored store DIFFERS", file=sys.stderr)
        return 30
    print(f"sha256sum: all {len(after.splitlines())} files are what they were")

    title("One file out of the object folder")
    nightferry(
        "restore", "files", "SG2/shares", "reports/", "--to", str(HERE / "restored"), "--copy", "objects"
    )
    run("diff", "-r", str(HERE / "stores/SG2/shares/reports"), str(HERE / "restored/reports"))
    print("diff -r: no difference")

    title("No nightferry needed to read it: GNU tar lists a staged image")
    image = next(iter(sorted((HERE / "backup/SG1/priv1").glob("*.tar"))))
    listing = run("tar", "-tf", str(image)).splitlines()
    print("\n".join(listing[:5]) + f"\n… {len(listing)} members in {image.name}")

    title("Where to look")
    server = json.loads(nightferry("server", "status", "--json", show=False))
    print(f"Prefect UI:   {server.get('ui', '')}")
    print(f"the site:     {SITE}")
    print(f"its catalog:  {HERE / 'catalog'}")
    print(f"go on in:     cd {HERE}")
    print(f"              export NIGHTFERRY_STATE=$PWD/state PATH={Path(sys.executable).parent}:$PATH")
    print("with:         nightferry runs, images, files, restore …; nightferry server stop; --help")
    return 0


def make_stores() -> None:
    """Files of many kinds and sizes, and a SQLite database: about 30 MiB."""
    source = random.Random(1906)
    words = ["night", "ferry", "train", "dover", "dunkirk", "wagon", "berth", "tide", "signal", "customs"]
    for number in range(120):
        folder = HERE / "stores" / "SG1" / "priv1" / f"user{number % 12:02}"
        folder.mkdir(parents=True, exist_ok=True)
        text = " ".join(source.choices(words, k=source.randrange(50, 4000)))
        (folder / f"letter{number:03}.eml").write_text(text)
    (HERE / "stores/SG1/priv1/attachments.bin").write_bytes(source.randbytes(9 << 20))
    big = HERE / "stores/SG1/priv2"
    big.mkdir(parents=True)
    (big / "priv2.edb").write_bytes(source.randbytes(14 << 20))
    with (big / "sparse.img").open("wb") as sparse:
        sparse.truncate(64 << 20)
        sparse.seek(32 << 20)
        sparse.write(b"an island in a hole")
    shares = HERE / "stores/SG2/shares"
    (shares / "reports").mkdir(parents=True)
    for number in range(30):
        report = shares / "reports" / f"report-{number:02}.txt"
        report.write_text("\n".join(source.choices(words, k=500)))
        os.utime(report, ns=(10**18 + number, 10**18 + number * 1_000_003))
    (shares / "latest").symlink_to("reports/report-29.txt")
    os.link(shares / "reports/report-00.txt", shares / "first.txt")
    database = sqlite3.connect(HERE / "stores/SG2/mailbox.db")
    with database:
        database.execute("create table mail (id integer primary key, subject text, body blob)")
        database.executemany(
            "insert into mail (subject, body) values (?, ?)",
            ((" ".join(source.choices(words, k=6)), source.randbytes(2000)) for _ in range(1500)),
        )
    database.close()


def nightferry(*words: str, allowed: tuple[int, ...] = (0,), show: bool = True) -> str:
    """Runs the command as a user would, showing it first; ends the demo when it fails."""
    command = [str(Path(sys.executable).with_name("nightferry")), "--site", str(SITE), *words]
    if show:
        print(f"$ nightferry {' '.join(words)}", flush=True)
    environment = os.environ | {"NIGHTFERRY_STATE": str(HERE / "state")}
    environment.pop("PREFECT_API_URL", None)
    done = subprocess.run(  # noqa: S603
        command, env=environment, stdout=None if show else subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in allowed:
        raise SystemExit(done.returncode)
    return done.stdout or ""


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def sums(folder: Path) -> str:
    """sha256sum of every file below a folder."""
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return subprocess.run(  # noqa: S603
        ["sha256sum", *files],  # noqa: S607
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    ).stdout


def title(text: str) -> None:
    print(f"\n── {text} " + "─" * max(0, 76 - len(text)), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
