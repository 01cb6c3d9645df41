"""The verbs: their names, their modules, and what each is for."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """``target`` is ``module:attribute`` below nightferry.cli: a function, or for a noun its App."""

    name: str
    target: str
    help: str
    delivered: bool = True


VERBS = (
    Verb("init", "init:init", "Examine this machine and write a commented site file."),
    Verb("check", "check:check", "Check for everything that could fail tonight."),
    Verb("backup", "backup:backup", "Run the night now, or continue it."),
    Verb("gate", "gate:app", "Show a held gate, retry it, or approve it."),
    Verb("status", "status:status", "Show for every store whether it can be restored."),
    Verb("runs", "records:runs", "List the runs."),
    Verb("images", "records:images", "List the images."),
    Verb("copies", "records:copies", "List an image's copies."),
    Verb("files", "records:files", "List the files in an image."),
    Verb("restore", "restore:app", "Restore files, a store or a storage group."),
    Verb("verify", "verify:verify", "Read copies back and compare."),
    Verb("copy", "verify:copy", "Make copies again."),
    Verb("expire", "expire:expire", "Remove the copies that the retention does not keep."),
    Verb("hold", "hold:app", "Keep an image from expiring."),
    Verb("forget", "forget:forget", "Give up the copies that an image or a store still owes."),
    Verb("media", "media:app", "Manage cartridges."),
    Verb(
        "selection",
        "selection:app",
        "Show and fix a storage group's stores; adopt the images of a renamed store.",
    ),
    Verb("cluster", "cluster:app", "Show which node owns what; move a BACK group."),
    Verb("catalog", "catalog:app", "Rebuild the catalog from a destination."),
    Verb("tune", "tune:tune", "Measure a disk and propose staging settings."),
    Verb("deploy", "deploy:deploy", "Publish the site as Prefect deployments."),
    Verb("server", "server:app", "The site's own background Prefect server."),
    Verb("support", "support:support", "Write a redacted bundle for support."),
    Verb("completion", "guide:completion", "Print the shell completion of these words."),
    Verb("help", "guide:help_", "Show what a verb does and its options."),
    # Named by the contract, delivered later: they say so and exit 2.
    Verb("plan", "later:plan", "Predict tonight's window.", False),
    Verb("find", "later:find", "Show which images hold a path.", False),
    Verb("mount", "later:mount", "Show images and nights as folders.", False),
    Verb("audit", "later:audit", "Check the signed records.", False),
    Verb("drill", "later:drill", "Try a restore.", False),
    Verb("key", "later:key", "Manage the keys of encrypted copies.", False),
    Verb("ndmp", "later:ndmp", "Examine a NAS.", False),
    Verb("log", "later:log", "Examine a storage group's log.", False),
)
"""Every verb, in the order that help shows."""


SUMMARY = "Two-stage backup: disk to disk, a gate on proof, then tape and object stores."
