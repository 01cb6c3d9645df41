"""Files as a bad disk, a cut transfer or a hostile hand leaves them."""

from __future__ import annotations

import random


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Another file made of one: a byte or a few changed, a piece lost, doubled or zeroed, or its end cut off."""
    hurt = bytearray(data)
    at = chance.randrange(len(hurt))
    length = chance.randint(1, 64)
    match chance.randrange(6):
        case 0:
            hurt[at] ^= 1 << chance.randrange(8)
        case 1:
            for _ in range(chance.randint(2, 8)):
                hurt[chance.randrange(len(hurt))] = chance.randrange(256)
        case 2:
            del hurt[at : at + length]
        case 3:
            hurt[at:at] = hurt[at : at + length]
        case 4:
            hurt[at : at + length] = bytes(len(hurt[at : at + length]))
        case _:
            del hurt[at:]
    return bytes(hurt) if hurt != data else damaged(data, chance)
