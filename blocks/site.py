"""The site file as a Prefect block, so that other nodes need only the package and the API's address."""

from __future__ import annotations

import os
from pathlib import Path

from prefect.blocks.core import Block
from pydantic import Field

from nightferry.errors import ConfigError
from nightferry.model.allowed import require_allowed
from nightferry.model.load import LoadedSite, parse_site, site_digest
from nightferry.model.site import SiteFile

WORKER_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""Set in a process that a worker started: what it runs came from the Prefect API, not from somebody on this node."""


def document_name(site: SiteFile) -> str:
    """The block document's name; Prefect wants lower case."""
    return site.name.lower().replace("_", "-")


def deployment_name(site: SiteFile, node: str) -> str:
    """What a flow's deployment for one node is called."""
    return f"{document_name(site)}-{node.lower()}"


def pool_name(site: SiteFile) -> str:
    """The site's work pool."""
    return f"nightferry-{document_name(site)}"


class Site(Block):
    """The text of a site file. Holds no secret: a site file has only references to them.

    There are no validators here on purpose: the server would not run them on an edit in the UI, and a failing
    one hides its reason. The text is parsed, with all its errors, by ``open``.
    """

    _block_type_name = "nightferry site"
    _block_type_slug = "nightferry-site"
    _description = "A nightferry site file, published by `nightferry deploy`. Edit the file, not this block."

    text: str = Field(description="the site file (TOML)")
    published: str = Field(default="", description="SHA-256 of the text when `nightferry deploy` wrote it")

    @property
    def digest(self) -> str:
        """SHA-256 of the text as it is now."""
        return site_digest(self.text)

    def open(self) -> LoadedSite:
        """Parses the text; in a process that a worker started, only one that this node allows.

        Raises:
            ConfigError: the node does not allow it; or with key and line, as for the file.
        """
        if WORKER_VARIABLE in os.environ:
            require_allowed(self.text)
        source = "the Prefect block nightferry-site"
        return LoadedSite(parse_site(self.text, source), Path(source), self.text, self.digest)

    @classmethod
    def of(cls, name: str) -> Site:
        """The published block of a site.

        Raises:
            ConfigError: it was not published.
        """
        try:
            loaded = cls.load(name)
        except ValueError as error:
            raise ConfigError(
                f"site {name} is not published", hint="run `nightferry deploy` where the site file is"
            ) from error
        if not isinstance(loaded, cls):
            raise ConfigError(f"block {name} is not a nightferry site")
        return loaded
