"""Texts for other eyes."""

from nightferry.model.redact import redacted, scrubbed


def test_every_secret_goes_the_longest_first():
    said = scrubbed("key abc then abcdef, abc", ["abc", "abcdef"])
    assert said == "key ‹redacted› then ‹redacted›, ‹redacted›"
    assert scrubbed("nothing to hide", []) == "nothing to hide"


def test_credentials_in_a_url_go_known_or_not():
    assert scrubbed("GET sftp://me:word@host/x failed", []) == "GET sftp://…@host/x failed"


def test_a_site_file_loses_values_references_and_comments():
    text = '# the old one: hunter2\noptions = { client_keys = "file:/etc/key", port = 22 }\nurl = "sftp://me@host/x"\n'
    assert (
        redacted(text)
        == '# …\noptions = { client_keys = "‹redacted›", port = 22 }\nurl = "sftp://…@host/x"\n'
    )
