"""Installs the system programs that the tests hold nightferry against. Needs root;
without it, says what is missing.

Run as ``python -m tests.servers.install``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PROGRAMS = {
    "tar": "tar",
    "getfattr": "attr",
    "getfacl": "acl",
    "setfacl": "acl",
    "fincore": "util-linux",
    "sqlite3": "sqlite3",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "corosync": "corosync",
    "pacemakerd": "pacemaker",
    "crm_mon": "pacemaker-cli-utils",
    "ocf-tester": "resource-agents",
    "modprobe": "kmod",
    "fuser": "psmisc",
    "xmllint": "libxml2-utils",
    "ip": "iproute2",
    "losetup": "mount",
    "mkfs.ext4": "e2fsprogs",
    "curl": "curl",
    "xxhsum": "xxhash",
    "b3sum": "b3sum",
    "openssl": "openssl",
    "tgtd": "tgt",
    "iscsi-inq": "libiscsi-bin",  # and with it the library that nightferry uses
}
"""Program → Debian package."""


def missing() -> dict[str, str]:
    """Programs that are not on this machine, with their packages."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return {p: package for p, package in PROGRAMS.items() if shutil.which(p, path=path) is None}


def main() -> int:
    lacking = missing()
    if not lacking:
        return 0
    packages = sorted(set(lacking.values()))
    if os.geteuid() != 0:
        print(f"not root: tests that need {', '.join(sorted(lacking))} are skipped", file=sys.stderr)
        return 1 if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1" else 0
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], check=True, env=environment
    )
    still = missing()
    if still:
        print(f"still missing after the installation: {', '.join(sorted(still))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
