"""The site file: what the contract shows parses; what is wrong is told with key, line and nearest key."""

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from nightferry.errors import ConfigError, NotInThisRelease
from nightferry.model.destinations import FsspecSettings, TapeSettings, VirtualLibrarySettings
from nightferry.model.load import parse_site
from nightferry.units import GIB, MIB

CONTRACT = """\
schema = 1
[site]
name = "TEX"
catalog = "/srv/nightferry/catalog"        # a folder all nodes share
timezone = "America/Chicago"
restore_roots = ["/restore"]

[cluster]
kind = "local"
nodes = ["TEX-ACTV-1", "TEX-PASS-1", "TEX-PASS-2"]

[staging]
path = "/backup"
unbuffered = true
verify = "sample:1%"
keep_free = "5 %"

[[back_groups]]
name = "TEX-BACK-1"
path = "/backup1"
targets = ["TEX-PASS-2", "TEX-PASS-1"]
on_overrun = "drain"

[[groups]]
name = "SG1"
mail_group = "TEX-MAIL-1"
back_group = "TEX-BACK-1"
start = "20:00"
copies = ["tape", "cloud"]
tolerate = { vanished = "any", changed = 0, unreadable = 0 }
  [[groups.stores]]
  name = "priv1"
  kind = "files"
  path = "/srv/mail/SG1/priv1"
  exclude = ["*.tmp"]

[[destinations]]
name = "tape"
kind = "tape"
library = { kind = "virtual", path = "/srv/vtl", drives = 4, slots = 20, cartridge_bytes = "2 GiB" }
pool = { name = "daily", barcodes = ["*"], autolabel = "blank", wait_for_media = "8h" }

[[destinations]]
name = "cloud"
kind = "s3"
url = "s3://backups/tex"
endpoint = "http://127.0.0.1:18333"
encode = { compress = "zstd:1" }
lock = { mode = "governance", days = 30 }
bandwidth = ["20:00 50 MiB/s", "06:00 5 MiB/s"]

[retention]
keep_last = 3
keep_daily = 7
keep_weekly = 5
keep_monthly = 12
"""

LATER = """
[[destinations]]
name = "l700"
kind = "tape"
library = { kind = "iscsi", portal = "127.0.0.1:13260", target = "iqn.2026-01.local.rig:vtl" }

[[destinations]]
name = "l701"
kind = "tape"
library = { kind = "scsi", changer = "/dev/sg3", drives = ["/dev/nst0", "/dev/nst1"] }

[[destinations]]
name = "l702"
kind = "tape"
library = { kind = "ndmp", server = "nas1", robot = "robot", drives = ["tape1", "tape2"] }

[[ndmp_servers]]
name = "nas1"
address = ["10.0.0.11", "10.0.0.12"]
port = 10000
user = "ndmp"
password = "env:NAS1_PASSWORD"
profile = "generic"

[[groups]]
name = "PG1"
mail_group = "TEX-MAIL-1"
back_group = "TEX-BACK-1"
start = "20:05"
copies = ["cloud"]
postgres = { dsn = "host=/run/postgresql port=5432 user=backup", channels = 4, log_path = "/srv/wal" }

[[groups]]
name = "NAS"
back_group = "TEX-BACK-1"
start = "20:10"
copies = ["cloud"]
  [[groups.stores]]
  name = "home"
  kind = "ndmp"
  server = "nas1"
  path = "/vol/home"
  streams = 4
  [[groups.stores]]
  name = "erp"
  kind = "command"
  backup = ["/usr/bin/mariadb-backup", "--backup", "--stream=xbstream"]
  restore = ["/usr/bin/mbstream", "-x", "-C", "{target}"]
  minimum_bytes = "1 GiB"
"""

SMALL = """\
schema = 1
[site]
name = "tex"
catalog = "/srv/nightferry/catalog"
[cluster]
nodes = ["TEX-ACTV-1", "TEX-PASS-1"]
[staging]
path = "/backup"
[[groups]]
name = "SG1"
start = "20:00"
copies = ["folder"]
  [[groups.stores]]
  name = "priv1"
  kind = "files"
  path = "/srv/priv1"
[[destinations]]
name = "folder"
kind = "fsspec"
url = "file:///srv/copies"
"""


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        parse_site(text, "site.toml")
    return refused.value


def line_of(text: str, fragment: str) -> int:
    return text[: text.index(fragment)].count("\n") + 1


def test_the_contracts_site_file_parses():
    site = parse_site(CONTRACT)
    assert site.name == "TEX"
    assert site.tz == ZoneInfo("America/Chicago")
    assert site.active_node.name == "TEX-ACTV-1"
    assert [node.name for node in site.passive_nodes] == ["TEX-PASS-1", "TEX-PASS-2"]
    assert site.store("SG1/priv1").store.kind == "files"
    tape = site.destination("tape")
    assert isinstance(tape, TapeSettings)
    assert isinstance(tape.library, VirtualLibrarySettings)
    assert tape.library.cartridge_bytes == 2 * GIB
    assert tape.pool.wait_for_media == 8 * 3600
    assert site.retention_of("tape").keep_monthly == 12
    assert site.group("SG1").start == time(20)
    assert site.staging.verify_share == 0.01
    assert site.staging.keep_free_bytes(1000 * MIB) == 50 * MIB


def test_kinds_of_later_releases_parse_and_are_named_before_they_are_used():
    site = parse_site(CONTRACT + LATER)
    missing = "\n".join(site.undelivered())
    for place in (
        "destinations[l702].library.kind: ndmp",
        "groups[PG1].postgres",
        "groups[NAS].stores[home].kind: ndmp",
        "groups[NAS].stores[erp].kind: command",
    ):
        assert place in missing
    with pytest.raises(NotInThisRelease, match="ndmp libraries") as refused:
        site.require_delivered()
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("said", "level"),
    [('compress = "zstd"', 3), ('compress = "zstd:1"', 1), ('compress = "zstd:19"', 19), ("", None)],
)
def test_a_folders_copies_are_compressed_as_the_site_says(said, level):
    site = parse_site(SMALL + f"encode = {{ {said} }}")
    assert site.undelivered() == ()
    assert site.destination("folder").encode.level == level


@pytest.mark.parametrize(
    "said", ["zstd:0", "zstd:20", "zstd:", "zstd:01", "gzip", "ZSTD", "zstd:1\\n", "zstd:-1"]
)
def test_another_compression_is_refused_with_what_there_is(said):
    error = refusal(SMALL + f'encode = {{ compress = "{said}" }}')
    assert "destinations[folder].encode.compress: unknown compression" in error.message
    assert "'zstd:1' to 'zstd:19'" in error.message


def test_encryption_is_of_a_later_release():
    site = parse_site(SMALL + 'encode = { compress = "zstd:1", encrypt_to = ["age1x"] }')
    with pytest.raises(
        NotInThisRelease, match=r"destinations\[folder\]\.encode\.encrypt_to: encrypted copies"
    ):
        site.require_delivered()


def test_copies_on_tape_stay_plain():
    line = 'encode = { compress = "zstd" }'
    text = CONTRACT.replace('kind = "tape"\n', f'kind = "tape"\n{line}\n')
    error = refusal(text)
    assert "destinations[tape].encode: copies on tape are plain tar" in error.message
    assert f"line {line_of(text, line)}:" in error.message


def test_every_kind_of_cluster_is_in_this_release():
    site = parse_site(
        SMALL.replace("[cluster]\n", '[cluster]\nkind = "pacemaker"\nallow_without_fencing = false\n')
    )
    assert not site.undelivered()


COMMANDS = """\
where = ["/usr/bin/groups", "{group}"]
move = ["/usr/bin/groups", "{group}", "{node}", "{source}"]
owner = { regex = 'on (\\S+)' }
state = { json = "state" }
"""


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("", "cluster: needs a preset, or where, move, owner, state"),
        (COMMANDS, ""),
        (
            COMMANDS.replace("{source}", "{target}"),
            "unknown placeholder {target}; use one of: {group}, {node}, {source}",
        ),
        (COMMANDS.replace('"{group}"]', '"{node}"]'), "unknown placeholder {node}; use one of: {group}"),
        (COMMANDS.replace("(\\S+)", "\\S+"), "must have one group"),
        (COMMANDS.replace("(\\S+)", "(\\S+"), "not a regular expression"),
        (COMMANDS.replace('json = "state"', 'json = "state", regex = "(x)"'), "either regex or json"),
        (COMMANDS + 'view = ["/usr/bin/nodes", "{node}"]\n', "with view, up says where"),
        (COMMANDS + 'states = { Online = "good" }\n', "states.Online: must be"),
        (COMMANDS.replace('["/usr', '["usr'), "absolute path"),
        (COMMANDS + 'deadline = "0s"\n', "deadline"),
        ('preset = "windows-powershell"\nvia = ["/usr/bin/ssh", "n"]\n', ""),
    ],
)
def test_a_command_cluster_says_what_is_run_and_how_it_is_read(keys, said):
    text = SMALL.replace("[cluster]\n", f'[cluster]\nkind = "command"\n{keys}')
    if said:
        assert said in refusal(text).message
    else:
        parse_site(text).require_delivered()


IN_A_BUCKET = SMALL.replace('"/srv/nightferry/catalog"', '"s3://bucket/catalog"').replace(
    "[cluster]\n", '[cluster]\nstate_path = "/var/lib/nightferry/cluster.json"\n'
)
REACHED = """
[site.catalog_s3]
endpoint = "https://s3.example.org"
region = "eu-central-1"
access_key = "env:NF_KEY"
secret_key = "file:/etc/nightferry/secret"
"""


def test_a_catalog_may_lie_in_a_bucket():
    site = parse_site(IN_A_BUCKET)
    assert site.undelivered() == ()
    assert site.catalog_path is None
    assert str(site.cluster_state_path) == "/var/lib/nightferry/cluster.json"
    bucket = parse_site(IN_A_BUCKET + REACHED).catalog_bucket()
    assert (bucket.url, bucket.endpoint, bucket.region) == (
        "s3://bucket/catalog",
        "https://s3.example.org",
        "eu-central-1",
    )
    assert (bucket.access_key, bucket.secret_key) == ("env:NF_KEY", "file:/etc/nightferry/secret")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SMALL.replace("/srv/nightferry/catalog", "s3://bucket/catalog"), "cluster: .*needs state_path"),
        (SMALL + REACHED, "site.catalog_s3: is for a catalog in a bucket"),
        (IN_A_BUCKET + REACHED.replace("access_key", "# "), "given together, or neither"),
        (IN_A_BUCKET + REACHED.replace("env:NF_KEY", "AKIA123"), "a secret is never written here"),
        (IN_A_BUCKET + REACHED.replace("region", "regoin"), "region"),
        (IN_A_BUCKET.replace("s3://", "gs://"), "s3://bucket/prefix"),
    ],
)
def test_what_is_wrong_with_a_catalog_in_a_bucket_is_named(text: str, said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        parse_site(text)
    assert "AKIA" not in str(caught.value)


def test_one_back_group_needs_only_the_staging_path():
    site = parse_site(SMALL)
    assert [(b.name, str(b.path)) for b in site.back_groups] == [("tex-BACK-1", "/backup")]
    assert site.group("SG1").back_group == "tex-BACK-1"
    assert site.back_group() is site.back_groups[0]
    assert site.groups_of("tex-BACK-1") == site.groups
    site.require_delivered()


def test_the_derived_back_group_takes_the_name_that_the_groups_give():
    site = parse_site(SMALL.replace('start = "20:00"', 'start = "20:00"\nback_group = "disk"'))
    assert site.back_groups[0].name == "disk"


def test_the_only_back_group_lies_on_the_staging_path_unless_it_names_its_own():
    site = parse_site(CONTRACT.replace('path = "/backup1"\n', ""))
    assert str(site.back_groups[0].path) == "/backup"
    assert str(parse_site(CONTRACT).back_groups[0].path) == "/backup1"


def test_the_cluster_state_lies_beside_the_catalog_unless_it_is_given():
    assert str(parse_site(SMALL).cluster_state_path) == "/srv/nightferry/catalog-cluster.json"
    given = SMALL.replace("[cluster]\n", '[cluster]\nstate_path = "/srv/state.json"\n')
    assert str(parse_site(given).cluster_state_path) == "/srv/state.json"


def test_targets_are_the_alternates_and_then_the_primary_unless_given():
    given = CONTRACT.replace('targets = ["TEX-PASS-2", "TEX-PASS-1"]\n', "")
    given = given.replace('"TEX-PASS-2"]', '"TEX-PASS-10", "TEX-PASS-2"]')
    assert [n.name for n in parse_site(given).targets("TEX-BACK-1")] == [
        "TEX-PASS-2",
        "TEX-PASS-10",
        "TEX-PASS-1",
    ]
    own = CONTRACT.replace('["TEX-PASS-2", "TEX-PASS-1"]', '["TEX-PASS-1"]')
    assert [n.name for n in parse_site(own).targets("TEX-BACK-1")] == ["TEX-PASS-1"]


def test_foreign_node_names_are_accepted_with_their_role():
    text = SMALL.replace('nodes = ["TEX-ACTV-1", "TEX-PASS-1"]', "") + (
        '[[nodes]]\nname = "mail1.example.org"\nrole = "active"\nhost = "10.0.0.1"\n'
        '[[nodes]]\nname = "spare"\nrole = "passive"\n'
    )
    site = parse_site(text)
    assert (site.active_node.name, site.active_node.host) == ("mail1.example.org", "10.0.0.1")
    assert [(n.name, n.rank) for n in site.passive_nodes] == [("spare", 0)]


def test_retention_is_the_sites_unless_a_destination_has_its_own():
    text = CONTRACT.replace("keep_last = 3", 'keep_last = 3\nat_most = "30 %"\nexpire_at = "12:30"')
    own = 'retention = { keep_last = 1 }\nexpire = { profile = "expiry" }\nlock ='
    site = parse_site(text.replace("lock =", own))
    assert (site.retention.at_most, site.retention.expire_at) == (0.3, time(12, 30))
    cloud, tape = site.retention_of("cloud"), site.retention_of("tape")
    assert (cloud.keep_last, cloud.keep_daily, tape.keep_daily) == (1, 0, 7)
    assert [r.keeps_one for r in (cloud, tape)] == [True, False]
    assert [
        r.keeps_everything for r in (cloud, parse_site(CONTRACT.partition("[retention]")[0]).retention)
    ] == [
        False,
        True,
    ]


def test_names_that_do_not_exist_are_answered_with_those_that_do():
    site = parse_site(CONTRACT)
    for ask, known in (
        (lambda: site.group("SG2"), "SG1"),
        (lambda: site.store("SG1/priv2"), "priv1"),
        (lambda: site.destination("tapes"), "cloud, tape"),
        (lambda: site.back_group("X"), "TEX-BACK-1"),
        (lambda: site.node("X"), "TEX-ACTV-1"),
    ):
        with pytest.raises(ConfigError) as refused:
            ask()
        assert known in refused.value.hint


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            'path = "/srv/mail',
            'pathh = "/srv/mail',
            "groups[SG1].stores[priv1].pathh: unknown key; did you mean 'path'?",
        ),
        ("slots = 20", "slotz = 20", "destinations[tape].library.slotz: unknown key; did you mean 'slots'?"),
        ("timezone =", "time_zone =", "site.time_zone: unknown key; did you mean 'timezone'?"),
        ("[retention]", "[retentions]", "retentions: unknown key; did you mean 'retention'?"),
        ("changed = 0", "chanegd = 0", "groups[SG1].tolerate.chanegd: unknown key; did you mean 'changed'?"),
        (
            'kind = "files"',
            'kind = "filez"',
            "groups[SG1].stores[priv1].kind: unknown kind 'filez'; did you mean 'files'?",
        ),
        ('start = "20:00"', 'start = "25:00"', "groups[SG1].start: not a time of day"),
        (
            'wait_for_media = "8h"',
            'wait_for_media = "8x"',
            "destinations[tape].pool.wait_for_media: not a duration",
        ),
        (
            'cartridge_bytes = "2 GiB"',
            'cartridge_bytes = "2 gigs"',
            "destinations[tape].library.cartridge_bytes: not a size",
        ),
        ("keep_last = 3", 'at_most = "half"', "retention.at_most: not a percentage"),
        ("keep_last = 3", "at_most = 0", "retention.at_most:"),
        ("keep_last = 3", "expire_at = 12", "retention.expire_at: not a time of day"),
        ("keep_last = 3", "keep_lasts = 3", "retention.keep_lasts: unknown key; did you mean 'keep_last'?"),
        (
            'lock = { mode = "governance", days = 30 }',
            'expire = { access_key = "env:A" }',
            "destinations[cloud].expire: give access_key and secret_key, or a profile",
        ),
        (
            'lock = { mode = "governance", days = 30 }',
            'expire = { access_key = "AKIA", secret_key = "env:B" }',
            "destinations[cloud].expire.access_key: a secret is never written here",
        ),
        ("drives = 4", "drives = true", "destinations[tape].library.drives:"),
        ("schema = 1", "schema = 2", "schema: must be 1"),
        ("America/Chicago", "Mars/Base", "site.timezone: no time zone"),
        ('vanished = "any"', 'vanished = "some"', "groups[SG1].tolerate.vanished: must be a number"),
        ('"20:00 50 MiB/s"', '"20:00 50"', "destinations[cloud].bandwidth: not a rate"),
        ('"20:00 50 MiB/s"', '"20:00 0 MiB/s"', "bandwidth: in '20:00 0 MiB/s': a limit of zero"),
        ('"06:00 5 MiB/s"', '"20:00 5 MiB/s"', "destinations[cloud].bandwidth: two limits"),
        ('path = "/srv/vtl"', 'path = "vtl"', "destinations[tape].library.path: not an absolute path"),
        (
            '["*.tmp"]',
            '["!"]',
            "groups[SG1].stores[priv1].exclude: not a pattern as in .gitignore: '!'",
        ),
        ('name = "priv1"', 'name = "a.b"', "groups[SG1].stores[a.b].name: not a name"),
        (
            'copies = ["tape", "cloud"]',
            'copies = ["tap"]',
            "groups[SG1].copies: no destination is called 'tap'",
        ),
        (
            'copies = ["tape", "cloud"]',
            'copies = ["tape", "tape"]',
            "groups[SG1].copies: a destination is listed twice",
        ),
        (
            'copies = ["tape", "cloud"]',
            'at_least = 3\ncopies = ["tape", "cloud"]',
            "groups[SG1].at_least: 3 of 2",
        ),
        ('back_group = "TEX-BACK-1"', 'back_group = "TEX-BACK-2"', "groups[SG1].back_group: no BACK group"),
        ('mail_group = "TEX-MAIL-1"', 'mail_group = "TEX-BACK-1"', "groups[SG1].mail_group:"),
        (
            'targets = ["TEX-PASS-2"',
            'targets = ["TEX-ACTV-1"',
            "back_groups[TEX-BACK-1].targets: no passive node",
        ),
        ('name = "cloud"', 'name = "tape"', "destinations[tape].name: the name 'tape' is used twice"),
        (
            'catalog = "/srv/nightferry/catalog"',
            'catalog = "/backup1/c"',
            "site.catalog: the catalog lies on the disk",
        ),
        ('catalog = "/srv/nightferry/catalog"', 'catalog = "srv"', "site.catalog: not an absolute path"),
        (
            'path = "/srv/mail/SG1/priv1"',
            'path = "/backup1/x"',
            "groups[SG1].stores[priv1].path: /backup1/x and the disk",
        ),
        ('path = "/srv/mail/SG1/priv1"', 'path = "/"', "groups[SG1].stores[priv1].path: / and the disk"),
        ('["TEX-ACTV-1", "TEX-PASS-1", "TEX-PASS-2"]', '["mail1"]', "cluster.nodes: cannot read a role"),
        (
            '["TEX-ACTV-1", "TEX-PASS-1", "TEX-PASS-2"]',
            '["TEX-PASS-1", "TEX-PASS-2"]',
            "cluster.nodes: no active node",
        ),
        ("sample:1%", "sample:1", "staging.verify: not a percentage"),
        ("sample:1%", "some", "staging.verify: not a way to verify"),
        ('keep_free = "5 %"', 'keep_free = "much"', "staging.keep_free: not a size"),
        ('keep_free = "5 %"', 'buffer_bytes = "100 KiB"\nstreams = 0', "staging.streams:"),
        ('keep_free = "5 %"', 'buffer_bytes = "1536 KiB"', "staging.buffer_bytes:"),
    ],
)
def test_a_wrong_key_is_named_with_its_line(right, wrong, said):
    assert right in CONTRACT
    text = CONTRACT.replace(right, wrong, 1)
    error = refusal(text)
    assert said in error.message
    assert error.message.startswith("site.toml, ")
    if not wrong.startswith(("name = ", "keep_free", "buffer_bytes")):
        assert (
            f"line {line_of(text, wrong.splitlines()[-1 if 'at_least' not in wrong else 0])}: "
            in error.message
        )


def test_a_duplicate_names_the_line_of_the_second():
    text = CONTRACT.replace('name = "cloud"', 'name = "tape"')
    second = text.index('name = "tape"', text.index('name = "tape"') + 1)
    assert f"line {text[:second].count(chr(10)) + 1}: " in refusal(text).message


def test_every_error_is_told_at_once():
    error = refusal(CONTRACT.replace("slots = 20", "slotz = 20").replace('start = "20:00"', 'start = "8pm"'))
    assert "2 errors" in error.message
    assert error.subject == "groups[SG1].start"


def test_broken_toml_is_told_with_its_line():
    error = refusal(CONTRACT.replace('name = "TEX"', 'name = "TEX'))
    assert "not TOML" in error.message
    assert "at line 3" in error.message


@pytest.mark.parametrize(
    "section", ["groups", "site", "staging", "destinations", "nodes", "back_groups", "cluster"]
)
def test_a_section_of_the_wrong_shape_is_refused_by_name(section):
    text = f"{section} = 7\n"
    assert section in refusal(text).message


def test_missing_sections_are_named():
    message = refusal("schema = 1\n").message
    assert "site: is missing" in message
    assert "groups: is missing" in message
    assert "back_groups: is missing; give [staging] a path" in message


def test_several_back_groups_must_be_listed_and_chosen():
    two = CONTRACT + '[[back_groups]]\nname = "TEX-BACK-2"\npath = "/backup2"\n'
    with pytest.raises(ConfigError, match="none was named"):
        parse_site(two).back_group()
    assert "several BACK groups" in refusal(two.replace('back_group = "TEX-BACK-1"\n', "")).message
    assert "share a disk" in refusal(two.replace('"/backup2"', '"/backup1/sub"')).message


FOLDER = '[[destinations]]\nname = "second"\nkind = "fsspec"\nurl = "{}"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            FOLDER.format("file:///backup1/copies"),
            "second].url: /backup1/copies lies on the disk of TEX-BACK-1",
        ),
        (FOLDER.format("file:///srv/vtl/"), "second].url: tape is already there"),
        (FOLDER.format("memory://a") + FOLDER.format("memory://a/").replace("second", "third"), "third].url"),
        (FOLDER.format("file://srv/copies"), "second].url: not an absolute path"),
    ],
    ids=["on the BACK disk", "at the same location", "at one URL", "two slashes"],
)
def test_a_destination_has_a_place_of_its_own_that_stays(text, said):
    assert said in refusal(CONTRACT + text).message


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/x", 'second].url: a bucket is a destination of kind = "s3"'),
        ("s3a://bucket/x", 'second].url: a bucket is a destination of kind = "s3"'),
        ("local:///srv/x", "second].url: write file:///"),
        ("sftp://me:HUNTER2@host/x", "second].url: a password is never written into a URL"),
        ("simplecache::sftp://host/x", "second].url: not a URL"),
    ],
)
def test_a_url_that_another_key_or_kind_serves_is_refused(url, said):
    message = refusal(CONTRACT + FOLDER.format(url)).message
    assert said in message
    assert "HUNTER2" not in message


def test_any_other_url_is_in_this_release():
    text = (
        CONTRACT
        + FOLDER.format("sftp://me@host:2222/x")
        + 'options = { client_keys = "file:/k", port = 22 }\n'
    )
    second = parse_site(text).destination("second")
    assert (second.scheme, second.options) == ("sftp", {"client_keys": "file:/k", "port": 22})
    assert not [u for u in parse_site(text).undelivered() if "second" in u]


def test_a_recall_has_a_tier_days_and_an_end():
    endpoint = 'endpoint = "http://127.0.0.1:18333"'
    said = parse_site(CONTRACT).destination("cloud").recall
    assert (said.tier, said.days, said.wait) == ("standard", 3, 48 * 3600)
    given = f'{endpoint}\nrecall = {{ tier = "bulk", days = 9, wait = "3d" }}\nstorage_class = "DEEP_ARCHIVE"'
    cloud = parse_site(CONTRACT.replace(endpoint, given)).destination("cloud")
    assert (cloud.recall.tier, cloud.recall.days, cloud.recall.wait) == ("bulk", 9, 3 * 86400)
    assert cloud.archives
    for wrong, says in [
        (given.replace("bulk", "expedited"), "recall.tier: DEEP_ARCHIVE has no expedited recall"),
        (given.replace("bulk", "slow"), "recall.tier: must be"),
        (given.replace("days = 9", "days = 0"), "recall.days"),
    ]:
        assert says in refusal(CONTRACT.replace(endpoint, wrong)).message


@pytest.mark.parametrize(
    "secret",
    [
        'access_key = "HUNTER2"',
        'secret_key = "HUNTER2"',
        'endpoint = "https://me:HUNTER2@host"',
        'endpoint = "https://host/?secret=HUNTER2"',
    ],
)
def test_a_secret_in_the_site_file_is_refused_and_not_repeated(secret):
    error = refusal(CONTRACT.replace('endpoint = "http://127.0.0.1:18333"', secret))
    assert "never" in error.message
    assert "HUNTER2" not in f"{error.message} {error.hint} {error!r}"
    assert error.__cause__ is None


def test_a_password_in_a_dsn_is_refused_and_not_repeated():
    for dsn in ("host=x password=HUNTER2", "host=x Password = HUNTER2", "postgresql://me:HUNTER2@host/db"):
        error = refusal((CONTRACT + LATER).replace("host=/run/postgresql port=5432 user=backup", dsn))
        assert "groups[PG1].postgres.dsn" in error.message
        assert "HUNTER2" not in error.message


def test_an_fsspec_option_that_looks_like_a_secret_must_be_a_reference():
    error = refusal(SMALL + 'options = { password = "HUNTER2" }\n')
    assert "password" in error.message
    assert "HUNTER2" not in error.message
    site = parse_site(SMALL + 'options = { password = "env:P", timeout = 5 }\n')
    folder = site.destination("folder")
    assert isinstance(folder, FsspecSettings)
    assert folder.options == {"password": "env:P", "timeout": 5}


def test_a_bandwidth_is_steps_by_time_of_day():
    site = parse_site(CONTRACT.replace("50 MiB/s", "unlimited"))
    steps = [(step.start, step.bytes_per_s) for step in site.destination("cloud").bandwidth]
    assert steps == [(time(6), 5 * MIB), (time(20), None)]
    assert site.destination("tape").bandwidth == site.staging.bandwidth == ()


def test_a_deadline_is_a_time_of_day_or_a_span():
    start = datetime(2026, 11, 30, 20, tzinfo=ZoneInfo("America/Chicago"))
    for text, due in (
        ("07:00", start.replace(day=1, month=12, hour=7)),
        ("11h", start + timedelta(hours=11)),
    ):
        site = parse_site(SMALL + f'deadline = "{text}"\n')
        assert site.destination("folder").deadline_after(start) == due
    assert parse_site(SMALL).destination("folder").deadline_after(start) is None


def test_a_store_may_tolerate_more_than_its_group():
    own = parse_site(SMALL.replace('kind = "files"', 'kind = "files"\n  tolerate = { changed = 2 }')).store(
        "SG1/priv1"
    )
    assert own.tolerate.exceeded(vanished=9, changed=2, unreadable=0) == ()
    assert own.tolerate.exceeded(vanished=0, changed=3, unreadable=1) == (
        "3 files changed, 2 tolerated",
        "1 file unreadable, 0 tolerated",
    )


def test_a_site_cannot_be_changed():
    site = parse_site(SMALL)
    with pytest.raises(ValueError):
        site.staging.streams = 9
