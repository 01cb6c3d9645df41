"""Secrets of every kind, with Prefect: used, and left nowhere by nights that fail after the login and by those that
do not. What is left is searched whole: terminal, state, staging, destinations, catalog, Prefect's database and API."""

import json
import os
import stat
import subprocess
from base64 import b64encode
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest

from tests.servers.proxy import Fault, proxied
from tests.servers.repeating_sftp import repeating_sftp
from tests.servers.seaweed import KEYS
from tests.servers.tgtd import TARGET
from tests.servers.tgtd import serving as tape_library
from tests.support import toml
from tests.support.leaks import CommandLines, Search
from tests.support.prefect_site import BACK, HEAD, ask, everything

pytestmark = [pytest.mark.e2e, pytest.mark.server, pytest.mark.xdist_group("prefect")]
IN_BACK = f'back_group = "{BACK}"\n'


def test_a_night_and_a_restore_with_a_key_from_a_block(site, seaweed):
    from prefect.blocks.system import Secret

    prefix = seaweed.prefix()
    text = site.path.read_text().replace('copies = ["tape", "objects"]', 'copies = ["cloud"]')
    cloud = toml.bucket(
        f"s3://{seaweed.bucket}/{prefix}",
        seaweed.endpoint,
        keys=("env:NF_E2E_ACCESS", f"block:nf-e2e-{prefix}"),
    )
    site.path.write_text(text + cloud)
    keys = {"NF_E2E_ACCESS": KEYS[0]}

    missing = site.cli("check", "--json", **keys)
    findings = {f["id"]: f for f in json.loads(missing.stdout)["findings"]}
    assert f"no Secret block for block:nf-e2e-{prefix}" in findings["NF-DEST-001"]["text"]

    Secret(value=KEYS[1]).save(f"nf-e2e-{prefix}")
    backup = site.cli("backup", "--json", **keys)
    assert backup.returncode == 0, backup.stderr
    back = site.here / "restored" / "one"
    restored = site.cli("restore", "store", "SG1/priv1", "--copy", "cloud", "--to", str(back), **keys)
    assert restored.returncode == 0, restored.stderr
    away = site.cli("verify", **keys, PREFECT_API_URL="http://127.0.0.1:9/api")
    assert away.returncode != 0
    assert "the Prefect server does not answer" in away.stdout + away.stderr
    for ran in (missing, backup, restored, away):
        assert KEYS[1] not in ran.stdout + ran.stderr


HOOK = """\
#!/bin/sh
DATABASE_URL="postgres://app:{dsn}@db/mail" /usr/bin/env
/bin/cat {password}
test ! -e {fails}
"""
PLANTED = {
    "env: a passphrase": "passphrase/xyzzy+7f3a",
    "file: an sftp password": "plugh/91cc+sftp-password",
    "file: a CHAP password": "chap-sesame-4711",
    "block: an S3 key": KEYS[1],
    "a session token": "FwoGZXIvYXdzEBY/aDOk+token=",
    "a DSN in our environment": "dsn/outside+5d2e",
    "a DSN in a hook": "dsn/inside+77b1",
}


class EveryKind:
    """A site with a secret of every kind, before servers that repeat what they know."""

    def __init__(self, site, seaweed, proxy, sftp, tape):
        self.site, self.seaweed, self.proxy, self.sftp, self.tape = site, seaweed, proxy, sftp, tape
        self.prefixes = {"cloud": seaweed.prefix(), "session": seaweed.prefix()}
        self.folder = site.here / "secrets"
        self.folder.mkdir()
        self.fails = site.here / "fails"
        self.aws = self._keep("aws", "")
        self.key = self.folder / "key"
        passphrase = PLANTED["env: a passphrase"]
        words = ["ssh-keygen", "-q", "-t", "ecdsa", "-m", "PKCS8", "-N", passphrase, "-f", self.key]
        subprocess.run(words, check=True)
        self.block = f"nf-e2e-{self.prefixes['cloud']}"
        self._write()

    def _keep(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def _write(self):
        from prefect.blocks.system import Secret

        Secret(value=KEYS[1]).save(self.block, overwrite=True)
        password = self._keep("sftp", PLANTED["file: an sftp password"] + "\n")
        chap = self._keep("chap", PLANTED["file: a CHAP password"] + "\n")
        hook = self._keep(
            "hook", HOOK.format(dsn=PLANTED["a DSN in a hook"], password=password, fails=self.fails)
        )
        hook.chmod(0o700)
        remote = self.site.here / "remote"
        remote.mkdir()
        options = {
            "password": f"file:{password}",
            "client_keys": f"file:{self.key}",
            "passphrase": "env:NF_E2E_PASSPHRASE",
            "known_hosts": self.sftp.known_hosts,
        }
        written = ", ".join(f'{name} = "{value}"' for name, value in options.items())
        library = (
            f'{{ kind = "iscsi", portal = "{self.tape.portal}", target = "{TARGET}", user = "backup", '
            f'password = "file:{chap}" }}'
        )
        urls = {name: f"s3://{self.seaweed.bucket}/{prefix}" for name, prefix in self.prefixes.items()}
        session = (
            f'\n[[destinations]]\nname = "session"\nkind = "s3"\nurl = "{urls["session"]}"\n'
            f'endpoint = "{self.proxy.endpoint}"\nprofile = "session"\n'
        )
        keys = ("env:NF_E2E_ACCESS", f"block:{self.block}")
        self.site.path.write_text(
            HEAD.format(here=self.site.here)
            + toml.group("SG1", ("tape", "cloud", "session", "remote"), start="20:00", more=IN_BACK)
            + toml.store("priv1", self.site.here / "stores" / "priv1")
            + toml.tape(library)
            + toml.bucket(urls["cloud"], self.proxy.endpoint, keys=keys)
            + session
            + toml.fsspec("remote", self.sftp.url(remote), f"options = {{ {written} }}\n")
            + f'[[hooks]]\nname = "tells"\nstage = "stage-two"\nwhen = "after"\ncommand = ["{hook}"]\n'
        )

    def hurt(self):
        """From now on every destination says after the login what it knows; the library refuses it."""
        self.fails.touch()
        profile = f"[session]\naws_access_key_id = {KEYS[0]}\naws_secret_access_key = {KEYS[1]}\n"
        self._keep("aws", f"{profile}aws_session_token = {PLANTED['a session token']}\n")
        self.sftp.repeats = "last words"
        self.proxy.rule = self._repeated
        self._account("another-sesame")

    def heal(self):
        self._keep("aws", self.aws.read_text().partition("aws_session_token")[0])
        self.sftp.repeats = ""
        self.proxy.rule = lambda ask: None
        self._account(PLANTED["file: a CHAP password"])

    def _account(self, password):
        if "backup" in self.tape.adm("--op", "show", "--mode", "account"):
            self.tape.adm("--op", "delete", "--mode", "account", "--user", "backup")
        account = ("--mode", "account", "--user", "backup")
        self.tape.adm("--op", "new", *account, "--password", password)
        self.tape.adm("--op", "bind", *account, "--tid", "1")

    def _repeated(self, ask):
        """It was let in, and what it writes is answered with all that it sent and all that the store knows of it."""
        if ask.method != "PUT" and "x-amz-security-token" not in {name.lower() for name in ask.headers}:
            return None
        known = f"{KEYS[0]}:{KEYS[1]}"
        forms = [known, b64encode(known.encode()).decode(), KEYS[1].encode().hex(), quote(KEYS[1], safe="")]
        # What comes first is certainly shown: messages are cut.
        headers = sorted(ask.headers.items(), key=lambda header: header[0].lower() != "x-amz-security-token")
        said = escape("; ".join([*forms, *(f"{name}: {value}" for name, value in headers)]))
        return Fault(
            answer=(
                400,
                {"Content-Type": "application/xml"},
                f"<Error><Code>Odd</Code><Message>{said}</Message></Error>".encode(),
            )
        )

    def cli(self, *words):
        """The command line with every switch that makes it or a library say more."""
        return self.site.cli(
            *words,
            NF_E2E_ACCESS=KEYS[0],
            NF_E2E_PASSPHRASE=PLANTED["env: a passphrase"],
            DATABASE_URL=f"postgres://app:{PLANTED['a DSN in our environment']}@db/mail",
            AWS_SHARED_CREDENTIALS_FILE=str(self.aws),
            NIGHTFERRY_DEBUG="1",
            PREFECT_LOGGING_LEVEL="DEBUG",
            PREFECT_LOGGING_EXTRA_LOGGERS="botocore,asyncssh,urllib3,fsspec",
            TMPDIR=str(self.site.here / "tmp"),
        )


def at_the_bucket(seaweed, prefix):
    """Names, metadata and bytes of every object below a prefix."""
    for key in seaweed.keys_below(prefix):
        found = seaweed.client().get_object(Bucket=seaweed.bucket, Key=key)
        yield f"{key} {found['ResponseMetadata']}".encode() + found["Body"].read()


def in_prefect():
    """All that its API says without being asked for secrets: also what `everything` leaves out."""
    found = everything()
    for run in ask("/flow_runs/filter", {"limit": 200}):
        found += json.dumps(ask(f"/flow_run_states/?flow_run_id={run['id']}", method="GET"))
    for run in ask("/task_runs/filter", {"limit": 200}):
        found += json.dumps(ask(f"/task_run_states/?task_run_id={run['id']}", method="GET"))
    found += json.dumps(ask("/events/filter", {"limit": 50}))
    return found + json.dumps(ask("/variables/filter", {"limit": 200}))


def test_secrets_of_every_kind_are_left_nowhere_by_nights_that_fail_after_the_login(
    site, seaweed, prefect_server, tmp_path, tmp_path_factory
):
    (site.here / "tmp").mkdir(mode=0o700)
    search = Search(PLANTED)
    ran = {}
    with (
        proxied(seaweed.endpoint) as proxy,
        repeating_sftp(tmp_path_factory.mktemp("sftp"), PLANTED["file: an sftp password"]) as sftp,
        tape_library(tmp_path_factory.mktemp("tgtd"), drives=1, tapes=2, cartridge_mib=16) as tape,
    ):
        every = EveryKind(site, seaweed, proxy, sftp, tape)
        every.hurt()
        with CommandLines() as lines:
            ran["check that fails"] = every.cli("check", "--json")
            ran["night with a hook that fails"] = every.cli("backup")
            every.fails.unlink()
            sftp.repeats = "errors"
            ran["night that fails"] = every.cli("backup", "--json")
        logins = sftp.logins
        every.heal()
        with CommandLines() as later:
            ran["night"] = every.cli("backup", "--json")
            for copy in ("remote", "cloud", "tape"):
                to = str(site.here / "restored" / copy)
                ran[f"restore from {copy}"] = every.cli(
                    "restore", "store", "SG1/priv1", "--copy", copy, "--to", to
                )
            ran["check"] = every.cli("check", "--json")
            ran["verify"] = every.cli("verify", "--json")
            ran["deploy"] = every.cli("deploy", "--json")
            ran["status"] = every.cli("status", "--json")
            ran["support"] = every.cli("support", "--to", str(site.here / "support.tar.gz"))

        hooked, failed = ran["night with a hook that fails"], ran["night that fails"]
        assert (hooked.returncode, failed.returncode) == (50, 20), (hooked.stderr, failed.stderr)
        assert "hook tells after stage-two failed with exit code 1; what it wrote" in hooked.stderr
        # Each destination let it in, and said what it knows; the library refused it.
        reasons = {each["destination"]: each["why"] for each in json.loads(failed.stdout)["missing_copies"]}
        assert reasons.keys() == {"tape", "cloud", "session", "remote"}
        assert "refuses the login" in reasons["tape"]
        for destination in ("cloud", "session", "remote"):
            assert "‹redacted›" in reasons[destination], reasons
        assert logins > 0
        for name in ("night", "restore from remote", "restore from tape", "verify", "deploy", "support"):
            assert ran[name].returncode == 0, (name, ran[name].stdout, ran[name].stderr)

        found = [
            f"{name} in what {verb} said"
            for verb, done in ran.items()
            for name in search.names_in(done.stdout + done.stderr)
        ]
        found += [
            f"{name} in a command line" for line in lines.seen | later.seen for name in search.names_in(line)
        ]
        state = Path(os.environ["NIGHTFERRY_STATE"])
        kept = state / "TEX-hooks"
        found += search.below(tmp_path, state, tape.home, but=[every.folder, kept])
        found += [
            f"{name} at a bucket"
            for prefix in every.prefixes.values()
            for content in at_the_bucket(seaweed, prefix)
            for name in search.names_in(content)
        ]
        found += [f"{name} in Prefect's API" for name in search.names_in(in_prefect())]
        assert found == []

        # What a hook wrote lies in one file of this user's, without what we know of; its own words are its own.
        (words,) = kept.iterdir()
        assert stat.S_IMODE(words.stat().st_mode) == 0o600
        assert search.names_in(words.read_bytes()) == ["a DSN in a hook"]
        # The block has its secret, for whoever asks for it by its name and with the auth string.
        documents = ask("/block_documents/filter", {"include_secrets": True, "limit": 200})
        assert {d["name"] for d in documents if search.names_in(json.dumps(d))} <= {
            d["name"] for d in documents if d["block_type"]["slug"] == "secret"
        }
        _the_search_finds_what_is_there(search, tmp_path, state)


def _the_search_finds_what_is_there(search, tmp_path, state):
    planted = tmp_path / "planted"
    planted.mkdir()
    for name, secret in PLANTED.items():
        login = f"user:{secret}@host".encode()
        for form in (
            login,
            b64encode(login),
            login.hex().encode(),
            quote(login, safe="").encode(),
            b64encode(b"x" + login),
        ):
            (planted / "note").write_bytes(b"so it is " + form + b" then")
            assert search.below(planted) == [f"{name} in {planted / 'note'}"]
    secret = PLANTED["a session token"]
    made = ask("/variables/", {"name": "nf_planted", "value": "x" * 4900 + secret})
    try:
        assert search.names_in(in_prefect()) == ["a session token"]
        assert {each.rpartition("/")[2] for each in search.below(state, but=[state / "TEX-hooks"])} >= {
            "prefect.db"
        }
    finally:
        ask(f"/variables/{made['id']}", method="DELETE")
