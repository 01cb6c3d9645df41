"""nightferry's Prefect blocks: one, the published site file. Prefect finds it by the entry point group."""

from blocks.site import Site

__all__ = ["Site"]
