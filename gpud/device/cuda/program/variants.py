"""What a GPU has yet to decide: changes of kernels that a device makes if it is told to.

Each is written, tested over the model of the driver, and off until measurements on a GPU show that
it is worth its instructions. A device is opened with some of them, and then everything runs so.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from gpud.errors import InvalidArgument

__all__ = ["NAMES", "NO_VARIANTS", "Variants", "variants_of"]

NAMES: Final = ("folded_gates", "returned_claims", "chunk_counts")


class Variants(NamedTuple):
    """Which of the changes are made, in the order of `NAMES`.

    Attributes:
        folded_gates: blocks open the launch that they belong to; no gate is in front of it
            (`gpud.device.cuda.program.fold_gate`).
        returned_claims: task blocks are claimed in advance whatever they take, and released blocks
            give such claims back (`gpud.device.cuda.program.give_back`).
        chunk_counts: what is done is counted by chunks (`gpud.device.cuda.program.count_chunks`).
    """

    folded_gates: bool = False
    returned_claims: bool = False
    chunk_counts: bool = False


NO_VARIANTS: Final = Variants()


def variants_of(names: Collection[str]) -> Variants:
    """Return the variants of these names.

    Raises:
        InvalidArgument: there is no such variant.
    """
    for name in names:
        if name not in NAMES:
            known = ", ".join(NAMES)
            raise InvalidArgument(f"there is no variant {name!r} of kernels; there are {known}")
    return Variants(*(name in names for name in NAMES))
