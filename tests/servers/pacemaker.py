"""A real Corosync and Pacemaker cluster of three nodes for the tests, each in namespaces of its own.

Needs root. A node has its own network, processes, host name, ``/run``, ``/srv``, ``/dev/shm`` and cluster state;
every other path is this machine's. The MAIL and the BACK group each hold a real ext4 on a loop device, mounted
with ``force_unmount=false``, so that whoever keeps it busy makes its stop fail, and the reader agent.

Fencing is real: the fence agent asks this process, which kills the node and says so. Everything ends with this
process, however it ends; a loop device is given back by the kernel as soon as nobody has it open.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nightferry.cluster.reader_agent import AGENT_PATH

ACTIVE, PRIMARY, ALTERNATE = NODES = ("TEX-ACTV-1", "TEX-PASS-1", "TEX-PASS-2")
MAIL, BACK = GROUPS = ("TEX-MAIL-1", "TEX-BACK-1")
MOUNTS = {MAIL: Path("/srv/mail1"), BACK: Path("/srv/back1")}
PROGRAMS = (
    *("corosync", "pacemakerd", "crm_mon", "ocf-tester", "modprobe", "fuser", "xmllint", "ip", "losetup"),
    *("mkfs.ext4", "nsenter", "setpriv"),
)
"""Programs that a cluster is made of."""

HUB = "10.77.8.254"
"""Where the nodes find what is not a node of theirs."""

_STARTED_S = 60.0
_DISK_BYTES = 96 << 20
_STICKINESS = 100

_COROSYNC = """totem {{
  version: 2
  cluster_name: nightferry
  transport: knet
  crypto_cipher: none
  crypto_hash: none
  token: 3000
}}
nodelist {{
{nodes}}}
quorum {{
  provider: corosync_votequorum
}}
logging {{
  to_stderr: no
  to_syslog: no
  to_logfile: yes
  logfile: /var/log/corosync/corosync.log
}}
system {{
  move_to_root_cgroup: no
  sched_rr: no
  allow_knet_handle_fallback: yes
}}
"""

_BOOT = r"""set -e
node=$1 home=$2 address=$3
hostname "$node"
for path in lib/pacemaker lib/corosync log/pacemaker log/corosync; do
    mount --bind "$home/var/$path" "/var/$path"
done
mount --bind "$home/etc/corosync" /etc/corosync
for path in /dev/shm /run /srv; do mount -t tmpfs tmpfs "$path"; done
mkdir -p /run/lock /run/resource-agents /run/crm /run/corosync /run/pacemaker /srv/mail1 /srv/back1
chown hacluster:haclient /run/crm
chmod 770 /run/crm
for over in usr/sbin usr/lib/ocf/resource.d; do
    mkdir -p "/run/over/$over/new" "/run/over/$over/work"
    cp -r "$home/over/$over/." "/run/over/$over/new"
    mount -t overlay overlay "/$over" \
        -o "lowerdir=/$over,upperdir=/run/over/$over/new,workdir=/run/over/$over/work"
done
until ip link show eth0 > /dev/null 2>&1; do read -rt 0.05 <> <(:) || :; done
ip link set lo up
ip addr add "$address/24" dev eth0
ip link set eth0 up
nice -n -10 corosync -f > "$home/corosync.out" 2>&1 &
until corosync-cfgtool -s > /dev/null 2>&1; do read -rt 0.05 <> <(:) || :; done
export PCMK_logfile=/var/log/pacemaker/pacemaker.log PCMK_logfacility=none
nice -n -10 pacemakerd > "$home/pacemakerd.out" 2>&1 &
exec sleep infinity
"""

_FENCE = r"""#!/bin/bash
# Asks the machine that holds the node, and waits until it says that the node is dead.
action= node=
while read -r line; do
    case $line in
        action=*) action=${{line#action=}} ;;
        port=*|plug=*|nodename=*) node=${{line#*=}} ;;
    esac
done
case $action in
    metadata) cat << 'XML'
<?xml version="1.0"?>
<resource-agent name="fence_test" shortdesc="kills a node of the tests"><longdesc>kills a node of the tests</longdesc>
<parameters>
<parameter name="action" unique="0" required="1"><content type="string" default="reboot"/></parameter>
<parameter name="port" unique="0" required="0"><content type="string"/></parameter>
</parameters>
<actions><action name="on"/><action name="off"/><action name="reboot"/><action name="status"/>
<action name="list"/><action name="monitor"/><action name="metadata"/></actions>
</resource-agent>
XML
    ;;
    off|reboot)
        : > "{requests}/$node"
        for i in {{1..150}}; do
            [ -e "{requests}/$node" ] || exit 0
            read -rt 0.1 <> <(:)
        done
        exit 1 ;;
esac
exit 0
"""


@dataclass
class Look:
    """What a node with quorum sees: usable nodes, and for each group the node that all its members run on."""

    online: set[str]
    groups: dict[str, str | None]
    usable: set[str]
    unclean: set[str]
    failures: list[str]


@dataclass
class PacemakerServer:
    """A running cluster. ``fenced`` lists the nodes that the cluster had killed, in order."""

    home: Path
    fenced: list[str] = field(default_factory=list)
    fencing_answers: bool = True
    _holders: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _devices: dict[str, tuple[str, int]] = field(default_factory=dict)
    _cut: set[str] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    # -- nodes ---------------------------------------------------------------------------------

    def argv(self, node: str, *command: str) -> list[str]:
        """The argument list that runs a command on a node."""
        inner = str(self._inner(node))
        return ["nsenter", "-t", inner, "-m", "-u", "-n", "-p", "-i", "--", *command]

    def run(self, node: str, *command: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.argv(node, *command), capture_output=True, text=True, timeout=timeout)

    def done(self, node: str, *command: str) -> str:
        """The output of a command that must succeed."""
        ended = self.run(node, *command)
        assert ended.returncode == 0, f"{command} on {node}: {ended.stderr or ended.stdout}"
        return ended.stdout

    def shell(self, node: str, line: str) -> str:
        return self.done(node, "bash", "-c", line)

    def start(self, node: str, *command: str, **options: object) -> subprocess.Popen[str]:
        """A command that runs on a node beside the test, and ends when the returned process is killed."""
        command = ("setpriv", "--pdeathsig", "KILL", *command)
        return subprocess.Popen(self.argv(node, *command), text=True, **options)  # type: ignore[call-overload,no-any-return]

    def hub_argv(self, *command: str) -> list[str]:
        """The argument list that runs a command in the network that every node reaches, at the address ``HUB``."""
        return ["nsenter", "-t", str(self._holders["hub"].pid), "-n", "--", *command]

    def cut(self, node: str) -> None:
        """Unplugs the node's network."""
        self._cut.add(node)
        self._link(node, "down")

    def heal(self, node: str) -> None:
        """Plugs one node in again, or boots it if it was fenced meanwhile, and waits until it takes part and every
        group is started.

        One node at a time: of three one-node partitions that merge at once, each with a coordinator of its own,
        one coordinator may still write ``expected=down`` for a node that another has let join, and that node then
        takes nothing for ever (Pacemaker 2.1.5).
        """
        if not self.is_up(node):
            self.boot(node)
            return
        self._link(node, "up")
        self._cut.discard(node)
        self.until_joined(node)

    def kill(self, node: str) -> None:
        """Powers the node off. Its cable is plugged in when it boots."""
        self._cut.discard(node)
        holder = self._holders.pop(node)
        with suppress(ProcessLookupError, IndexError):
            os.kill(self._child(holder), signal.SIGKILL)
        holder.kill()
        holder.wait()

    def is_up(self, node: str) -> bool:
        return node in self._holders

    def boot(self, node: str) -> None:
        """Starts one node that is off, and waits until it takes part and every group is started: see ``heal``. A
        request to fence it that is still open would kill it again."""
        self._boot(node)
        self.until_joined(node)

    def until_joined(self, node: str) -> None:
        """Waits until a node takes part in a cluster with quorum whose groups are all started."""
        self.until(
            lambda seen: (
                self.is_up(node) and node in seen.online and _is_settled(seen) and self._takes_part(node)
            ),
            f"{node} takes part and every group is started",
        )

    # -- what is to be seen ----------------------------------------------------------------------

    def look(self) -> Look | None:
        """As the nodes with quorum see it; None while there are none."""
        for node in NODES:
            if not self.is_up(node):
                continue
            with suppress(OSError, subprocess.TimeoutExpired, ET.ParseError):
                answer = self.run(node, "crm_mon", "-1", "--output-as=xml", timeout=10)
                root = ET.fromstring(answer.stdout)
                dc = root.find("summary/current_dc")
                if dc is not None and dc.get("with_quorum") == "true" and self._has_quorum(node):
                    return _look(root)
        return None

    def until(self, true: Callable[[Look], bool], what: str, seconds: float = _STARTED_S) -> Look:
        """Waits for what the cluster must come to."""
        end = time.monotonic() + seconds
        seen = None
        while time.monotonic() < end:
            seen = self.look()
            if seen is not None and true(seen):
                return seen
            self._ended.wait(0.1)
        raise AssertionError(f"the cluster did not come to this in {seconds} s: {what}; it is {seen}")

    def mounted(self, group: str) -> list[str]:
        """The nodes that have a group's disk mounted."""
        device = self._devices[group][0]
        found = []
        for node in NODES:
            if self.is_up(node):
                mounts = Path(f"/proc/{self._inner(node)}/mounts").read_text()
                found += [node for line in mounts.splitlines() if line.split()[0] == device]
        return found

    def leases(self, node: str, group: str) -> list[str]:
        """What our processes on a node have told the group's reader agent."""
        listed = self.run(node, "bash", "-c", f"cd /run/nightferry/{group} && ls *.lease").stdout
        return listed.split()

    def until_alone(self, node: str) -> None:
        """Waits until a node sees that it has no quorum."""
        end = time.monotonic() + _STARTED_S
        while 'with_quorum="true"' in self.run(node, "crm_mon", "-1", "--output-as=xml").stdout:
            assert time.monotonic() < end, f"{node} keeps its quorum"
            self._ended.wait(0.1)

    def device(self, group: str) -> str:
        return self._devices[group][0]

    def constraints(self) -> list[str]:
        """The names of all constraints that tools left in the cluster."""
        node = next(node for node in NODES if self.is_up(node))
        root = ET.fromstring(self.done(node, "cibadmin", "--query"))
        return [c.get("id", "") for c in root.iter("rsc_location") if c.get("id", "").startswith("cli-")]

    def reset(self) -> None:
        """Everything up, whole and on the active node, whatever a test did."""
        self.fencing_answers = True
        self._make_whole()
        for node in NODES:
            self.run(node, "crm_attribute", "--node", node, "--name", "standby", "--delete")
        for group in GROUPS:
            self.run(ACTIVE, "crm_resource", "--clear", "--resource", group)
            for name in ("is-managed", "target-role"):
                self.run(ACTIVE, "crm_resource", "--resource", group, "--meta", "--delete-parameter", name)
        self.property("stonith-enabled", "true")
        self.run(ACTIVE, "crm_resource", "--cleanup")
        if any(
            where != ACTIVE for where in self.until(_is_settled, "every group is started").groups.values()
        ):
            for group in GROUPS:
                self.run(ACTIVE, "crm_resource", "--move", "--resource", group, "--node", ACTIVE)
            self.until(
                lambda seen: set(seen.groups.values()) == {ACTIVE}, "every group is on the active node"
            )
            for group in GROUPS:
                self.run(ACTIVE, "crm_resource", "--clear", "--resource", group)
        self.fenced.clear()

    def _make_whole(self) -> None:
        """Every node up and in one cluster, one after the other."""
        for node in sorted(filter(self.is_up, self._cut)):
            self.heal(node)

        def is_whole(seen: Look) -> bool:
            for node in NODES:
                # Off before, or fenced only now. Back too early it would hear that it is dead, and go away again.
                if not self.is_up(node) and node not in seen.online | seen.unclean:
                    self.boot(node)
                    return False
            # Others do not yet know of a node that has just gone: each must say itself that it takes part.
            return (
                seen.online == set(NODES)
                and not seen.unclean
                and all(self.is_up(node) and self._takes_part(node) for node in NODES)
            )

        self.until(is_whole, "every node is online")

    def _takes_part(self, node: str) -> bool:
        answer = self.run(node, "crm_mon", "-1", "--output-as=xml")
        return answer.returncode == 0 and 'with_quorum="true"' in answer.stdout and self._has_quorum(node)

    def _has_quorum(self, node: str) -> bool:
        """What the membership layer says: `crm_mon` on a node that was cut off goes on saying so for seconds."""
        return self.run(node, "crm_node", "--quorum", timeout=10).stdout.strip() == "1"

    def property(self, name: str, value: str) -> None:
        """Sets a property of the cluster."""
        self.done(next(filter(self.is_up, NODES)), "crm_attribute", "--name", name, "--update", value)

    # -- up and down ------------------------------------------------------------------------------

    def up(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "fence").mkdir()
        for group in GROUPS:
            self._devices[group] = self._disk(self.home / f"{group}.img")
        (self.home / "boot.sh").write_text(_BOOT)
        self._hold("hub", ["sleep", "infinity"], [])
        self._hub("add", "br0", "type", "bridge")
        self._hub("set", "br0", "up")
        _must(*self.hub_argv("ip", "addr", "add", f"{HUB}/24", "dev", "br0"))
        self._hub("set", "lo", "up")
        for node in NODES:
            self._prepare(node)
            self._boot(node)
        threading.Thread(target=self._fence, daemon=True).start()
        self.until(lambda seen: seen.online == set(NODES) and _is_settled(seen), "up")

    def down(self) -> None:
        self._ended.set()
        for name in list(self._holders):
            self.kill(name)
        for _, fd in self._devices.values():
            os.close(fd)

    def _disk(self, image: Path) -> tuple[str, int]:
        with image.open("wb") as file:
            file.truncate(_DISK_BYTES)
        _must("mkfs.ext4", "-q", "-m", "0", str(image))
        device = _must("losetup", "--find", "--show", str(image))
        fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        _must("losetup", "--detach", device)  # in effect when the last one closes it
        return device, fd

    def _prepare(self, node: str) -> None:
        home = self.home / node
        for path in (
            "var/lib/corosync", "var/log/corosync", "var/log/pacemaker", "etc/corosync",
            *(f"var/lib/pacemaker/{part}" for part in ("blackbox", "cib", "cores", "pengine")),
            "over/usr/sbin", "over/usr/lib/ocf/resource.d/nightferry",
        ):  # fmt: skip
            (home / path).mkdir(parents=True)
        peers = "".join(
            f"  node {{\n    ring0_addr: {_address(i)}\n    name: {name}\n    nodeid: {i}\n  }}\n"
            for i, name in enumerate(NODES, 1)
        )
        (home / "etc/corosync/corosync.conf").write_text(_COROSYNC.format(nodes=peers))
        fence = home / "over/usr/sbin/fence_test"
        fence.write_text(_FENCE.format(requests=self.home / "fence"))
        agent = home / "over/usr/lib/ocf/resource.d/nightferry/nightferry-reader"
        shutil.copy(AGENT_PATH, agent)
        for program in (fence, agent):
            program.chmod(0o755)
        cib = home / "var/lib/pacemaker/cib/cib.xml"
        cib.write_text(configuration({group: device for group, (device, _) in self._devices.items()}))
        cib.chmod(0o600)
        for path in (
            home / "var/log/pacemaker",
            home / "var/lib/pacemaker",
            *(home / "var/lib/pacemaker").rglob("*"),
        ):
            shutil.chown(path, "hacluster", "haclient")

    def _boot(self, node: str) -> None:
        number = NODES.index(node) + 1
        home = self.home / node
        self._hold(
            node,
            ["bash", str(self.home / "boot.sh"), node, str(home), _address(number)],
            ["--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"],
        )
        inside = str(self._holders[node].pid)
        with suppress(AssertionError):
            self._hub("delete", f"p{number}")  # the cable of a killed node goes only some time after it
        self._hub("add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", inside)
        self._hub("set", f"p{number}", "master", "br0", "up")

    def _hold(self, name: str, command: Sequence[str], namespaces: Sequence[str]) -> None:
        """Starts what keeps a node's namespaces; it dies with this process."""
        with (self.home / f"{name}.out").open("ab") as out:
            holder = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", *namespaces, *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self._holders[name] = holder
        mine = os.readlink("/proc/self/ns/net")
        end = time.monotonic() + 10
        while os.readlink(f"/proc/{holder.pid}/ns/net") == mine:
            assert time.monotonic() < end, f"{name} gets no network of its own"
            self._ended.wait(0.01)

    @staticmethod
    def _child(holder: subprocess.Popen[bytes]) -> int:
        return int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0])

    def _inner(self, node: str) -> int:
        """The node's first process, as seen from here."""
        assert node in self._holders, f"{node} is off"
        end = time.monotonic() + 10
        while True:
            with suppress(IndexError):
                return self._child(self._holders[node])
            assert time.monotonic() < end, f"{node} does not start: {(self.home / f'{node}.out').read_text()}"
            self._ended.wait(0.01)

    def _hub(self, *arguments: str) -> None:
        _must(*self.hub_argv("ip", "link", *arguments))

    def _link(self, node: str, state: str) -> None:
        self._hub("set", f"p{NODES.index(node) + 1}", state)

    def _fence(self) -> None:
        """Kills the nodes that the cluster asks to be killed, unless a test lets fencing fail."""
        while not self._ended.wait(0.05):
            for request in (self.home / "fence").iterdir():
                if not self.fencing_answers:
                    continue
                if self.is_up(request.name):
                    self.fenced.append(request.name)
                    self.kill(request.name)
                request.unlink(missing_ok=True)


def _address(number: int) -> str:
    return f"10.77.8.{number}"


def _must(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, f"{command}: {ended.stderr or ended.stdout}"
    return ended.stdout.strip()


def _is_settled(seen: Look) -> bool:
    return len(seen.groups) == len(GROUPS) and all(seen.groups.values())


def _look(root: ET.Element) -> Look:
    nodes = root.findall("nodes/node")
    groups = {}
    for group in root.findall("resources/group"):
        where = {
            node.get("name") if node is not None and member.get("role") == "Started" else None
            for member in group.findall("resource")
            for node in [member.find("node")]
        }
        groups[group.get("id", "")] = where.pop() if len(where) == 1 else None
    return Look(
        online={n.get("name", "") for n in nodes if n.get("online") == "true" and n.get("pending") != "true"},
        usable={n.get("name", "") for n in nodes if n.get("online") == "true" and n.get("standby") != "true"},
        groups=groups,
        unclean={n.get("name", "") for n in nodes if n.get("unclean") == "true"},
        failures=[f"{f.get('op_key')} on {f.get('node')}" for f in root.findall("failures/failure")],
    )


def configuration(devices: dict[str, str]) -> str:
    """The cluster's configuration: a MAIL and a BACK group that prefer the active node, and fencing."""
    resources = ""
    locations = ""
    for group, device in devices.items():
        short = MOUNTS[group].name
        resources += (
            f'<group id="{group}">'
            + "".join(
                [
                    _primitive(f"{short}-disk", "pacemaker", "Dummy", {}),
                    _primitive(
                        f"{short}-fs",
                        "heartbeat",
                        "Filesystem",
                        {
                            "device": device,
                            "directory": str(MOUNTS[group]),
                            "fstype": "ext4",
                            "force_unmount": "false",
                        },
                    ),
                    _primitive(f"{short}-reader", "nightferry", "nightferry-reader", {"group": group}),
                ]
            )
            + "</group>"
        )
        locations += f'<rsc_location id="loc-{group}" rsc="{group}" node="{ACTIVE}" score="50"/>'
    properties = {
        "stonith-enabled": "true",
        "stonith-timeout": "20s",
        "no-quorum-policy": "stop",
        "dc-deadtime": "2s",
        "start-failure-is-fatal": "true",
        "transition-delay": "0s",
    }
    pairs = "".join(f'<nvpair id="p-{n}" name="{n}" value="{v}"/>' for n, v in properties.items())
    nodes = "".join(f'<node id="{i}" uname="{name}"/>' for i, name in enumerate(NODES, 1))
    return f"""<?xml version="1.0"?>
<cib validate-with="pacemaker-3.7" crm_feature_set="3.16.1" admin_epoch="0" epoch="1" num_updates="0">
<configuration>
<crm_config><cluster_property_set id="cib-bootstrap-options">{pairs}</cluster_property_set></crm_config>
<nodes>{nodes}</nodes>
<resources>{resources}
<primitive id="fence" class="stonith" type="fence_test"><instance_attributes id="fence-p">
<nvpair id="fence-hosts" name="pcmk_host_list" value="{" ".join(NODES)}"/></instance_attributes></primitive>
</resources>
<constraints>{locations}</constraints>
<rsc_defaults><meta_attributes id="defaults">
<nvpair id="defaults-stickiness" name="resource-stickiness" value="{_STICKINESS}"/></meta_attributes></rsc_defaults>
</configuration>
<status/>
</cib>
"""


def _primitive(name: str, provider: str, kind: str, parameters: dict[str, str]) -> str:
    pairs = "".join(f'<nvpair id="{name}-{n}" name="{n}" value="{v}"/>' for n, v in parameters.items())
    operations = "".join(
        f'<op id="{name}-{op}" name="{op}" interval="{interval}" timeout="20s"/>'
        for op, interval in (("monitor", "10s"), ("start", "0"), ("stop", "0"))
    )
    attributes = f'<instance_attributes id="{name}-p">{pairs}</instance_attributes>' if pairs else ""
    return (
        f'<primitive id="{name}" class="ocf" provider="{provider}" type="{kind}">'
        f"{attributes}<operations>{operations}</operations></primitive>"
    )


def missing() -> str:
    """Why no cluster can be started here; empty when one can."""
    lacking = [
        program for program in PROGRAMS if shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin") is None
    ]
    if lacking:
        return f"not on this machine: {', '.join(lacking)}"
    return "" if os.geteuid() == 0 else "a cluster needs root"


@contextmanager
def serving(home: Path) -> Iterator[PacemakerServer]:
    """A cluster with its state below ``home``, which may not lie in /run, /srv or /dev/shm."""
    server = PacemakerServer(home)
    try:
        server.up()
        yield server
    finally:
        server.down()


@pytest.fixture(scope="session")
def pacemaker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PacemakerServer]:
    """One cluster for the session of this process."""
    why = missing()
    if why:
        if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1":
            pytest.fail(why)
        pytest.skip(why)
    with serving(tmp_path_factory.mktemp("pacemaker")) as server:
        yield server
