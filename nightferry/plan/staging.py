"""When staging may give an image's room back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nightferry.errors import ConfigError
from nightferry.model.records import OUTLIVED, CopyRecord, ImageRecord


@dataclass(frozen=True, slots=True)
class CopyPolicy:
    """Where a storage group's images must be copied to.

    ``at_least``: how many verified copies free staging; None means all of ``destinations``.
    """

    destinations: tuple[str, ...]
    at_least: int | None = None

    def __post_init__(self) -> None:
        if self.at_least is not None and not 1 <= self.at_least <= len(self.destinations):
            raise ConfigError(
                f"at_least = {self.at_least} does not fit {len(self.destinations)} copies",
                hint="at_least is between 1 and the number of copies",
            )

    @property
    def needed(self) -> int:
        """How many verified copies free staging."""
        return len(self.destinations) if self.at_least is None else self.at_least


def is_secured(policy: CopyPolicy, copies: Iterable[CopyRecord]) -> bool:
    """Whether enough of the policy's destinations hold a verified copy, or held one that has expired since.
    Never true for a policy without copies.

    Args:
        copies: The image's copies, one per destination (the highest epoch).
    """
    verified = {copy.destination for copy in copies if copy.state in (*OUTLIVED, "verified")}
    return policy.needed > 0 and len(verified.intersection(policy.destinations)) >= policy.needed


def freeable(
    images: Iterable[ImageRecord],
    copies: Mapping[str, Sequence[CopyRecord]],
    policies: Mapping[str, CopyPolicy],
    *,
    forgotten: Collection[str] = (),
    needed_bytes: int = 0,
) -> list[ImageRecord]:
    """The staged images that may be freed, in the order in which to free them.

    The rule:

    1. Only an image whose policy's copies are verified (all of them, or ``at_least`` many), or that an operator gave
       up, is ever freed. One without a policy never is.
    2. Of each store staging keeps the newest image and, when that is partial or suspect, the newest whole one too,
       because the next restore most likely wants them and staging gives them fastest. All older ones may go,
       the oldest first.
    3. Only when those give less than ``needed_bytes`` may kept images go as well, the oldest first, and no
       more of them than needed. Rule 1 holds for them too: want of room never costs the last good copy.

    Args:
        images: The images that lie on staging now, the newest first.
        copies: Image → its copies, one per destination.
        policies: Image → its policy.
        forgotten: Images that an operator gave up.
        needed_bytes: Room that must come free; 0 when there is enough.
    """
    oldest_first = list(reversed(list(images)))
    kept: dict[tuple[str, str, str], str] = {}
    for image in oldest_first:
        kept[image.group, image.store, "newest"] = image.image
        if image.state == "whole":
            kept[image.group, image.store, "whole"] = image.image
    keep = set(kept.values())
    secured = [
        image
        for image in oldest_first
        if image.image in forgotten
        or (image.image in policies and is_secured(policies[image.image], copies.get(image.image, ())))
    ]
    freed = [image for image in secured if image.image not in keep]
    room = sum(image.size_bytes for image in freed)
    for image in secured:
        if room >= needed_bytes:
            break
        if image.image in keep:
            freed.append(image)
            room += image.size_bytes
    return freed
