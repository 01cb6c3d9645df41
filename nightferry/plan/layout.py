"""The roles of a site's nodes, as one line tells them: ``AAAAPpp``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nightferry.model.nodes import NodeSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of nodes by role.

    The primary is the passive node that a service fails over to first, so backups keep it free; the alternates
    are the others.
    """

    active: tuple[str, ...]
    primary: str | None
    alternates: tuple[str, ...]

    @classmethod
    def of(cls, nodes: Iterable[NodeSpec]) -> Layout:
        """The layout of a site's nodes, each role by rank."""
        ranked = sorted(nodes, key=lambda node: node.rank)
        passive = [node.name for node in ranked if node.role == "passive"]
        return cls(
            active=tuple(node.name for node in ranked if node.role == "active"),
            primary=passive[0] if passive else None,
            alternates=tuple(passive[1:]),
        )

    @property
    def pattern(self) -> str:
        """``A`` for each active node, ``P`` for the primary, ``p`` for each alternate."""
        return "A" * len(self.active) + "P" * (self.primary is not None) + "p" * len(self.alternates)

    @property
    def passive(self) -> tuple[str, ...]:
        """The passive nodes in the order in which BACK groups go to them: the alternates, then the primary."""
        return self.alternates + ((self.primary,) if self.primary is not None else ())

    def role_of(self, node: str) -> str:
        """``active``, ``primary`` or ``alternate``; empty for a node of another site."""
        if node in self.active:
            return "active"
        if node == self.primary:
            return "primary"
        return "alternate" if node in self.alternates else ""
