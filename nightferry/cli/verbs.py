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
    Verb("init", "init:init", "Write a commented site file after looking at this machine."),
    Verb("check", "check:check", "Look for everything that could fail tonight."),
    Verb("backup", "backup:backup", "Run the night now, or go on with it."),
    Verb("gate", "gate:app", "Look at a held gate, try again, or approve."),
    Verb("status", "status:status", "Say of every store whether it is restorable."),
    Verb("runs", "records:runs", "List the runs."),
    Verb("images", "records:images", "List the images."),
    Verb("copies", "records:copies", "List an image's copies."),
    Verb("files", "records:files", "List the files in an image."),
    Verb("restore", "restore:app", "Restore files, a store or a storage group."),
    Verb("verify", "verify:verify", "Read copies back and compare."),
    Verb("copy", "verify:copy", "Make copies again."),
    Verb("expire", "expire:expire", "Remove the copies that the retention does not keep."),
    Verb("hold", "hold:app", "Keep an image from expiring."),
    Verb("forget", "forget:forget", "Give up what an image or a store still owes."),
    Verb("media", "media:app", "Look after cartridges."),
    Verb("selection", "selection:app", "Show and fix a storage group's stores; go on after a rename."),
    Verb("cluster", "cluster:app", "Show who owns what; move a BACK group."),
    Verb("catalog", "catalog:app", "Make the catalog anew from media."),
    Verb("tune", "tune:tune", "Measure a disk and propose staging settings."),
    Verb("deploy", "deploy:deploy", "Publish the site as Prefect deployments."),
    Verb("server", "server:app", "The site's own background Prefect server."),
    Verb("support", "support:support", "Write a redacted bundle for whoever helps."),
    Verb("completion", "guide:completion", "Print what completes these words in a shell."),
    Verb("help", "guide:help_", "Show what a verb does and takes."),
    # Named by the contract, delivered later: they say so and exit 2.
    Verb("plan", "later:plan", "Predict tonight's window.", False),
    Verb("find", "later:find", "Say which images hold a path.", False),
    Verb("mount", "later:mount", "Show images and nights as folders.", False),
    Verb("audit", "later:audit", "Check the signed records.", False),
    Verb("drill", "later:drill", "Try a restore.", False),
    Verb("key", "later:key", "Look after the keys of encrypted copies.", False),
    Verb("ndmp", "later:ndmp", "Look at a NAS.", False),
    Verb("log", "later:log", "Look at a storage group's log.", False),
)
"""Every verb, in the order that help shows."""


SUMMARY = "Two-stage backup: disk to disk, a gate on proof, then tape and object stores."
