"""The vocabulary of PTX: patterns of tokens, and predefined registers.

The patterns are possessive where they can be (``++``, ``*+``): a failed match then costs one pass
over the text instead of a search, which keeps parsing linear on hostile input.

Source: PTX ISA 9.0, sections 4.4 (identifiers), 4.5 (constants), 5 (types), 10 (special
registers).
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "BLANK",
    "IDENTIFIER",
    "INTEGER",
    "NEWEST_VERSION",
    "STRING",
    "covers_special_register",
    "is_special_register",
]

#: Newest PTX version that this compiler knows (CUDA 13.0). Later ones with the same major number
#: only add to it.
NEWEST_VERSION: Final = (9, 0)

IDENTIFIER: Final = r"(?:[A-Za-z][\w$]*+|[_$%][\w$]++|_)"
INTEGER: Final = r"(?:0[xX][0-9a-fA-F]++|0[bB][01]++|[0-9]++)U?"
STRING: Final = r'"(?:[^"\\\n]|\\.)*+"'

#: White space and comments, possibly none. An unterminated comment is not matched.
BLANK: Final = re.compile(r"(?:\s++|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+", re.ASCII)

_SPECIAL: Final = re.compile(
    r"%(?:"
    r"(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)(?:\.[xyzw])?"
    r"|laneid|warpid|nwarpid|smid|nsmid|gridid|is_explicit_cluster"
    r"|cluster_ctarank|cluster_nctarank|lanemask_(?:eq|le|lt|ge|gt)"
    r"|clock|clock_hi|clock64|pm[0-7]|pm[0-7]_64|envreg(?:[12]?[0-9]|3[01])"
    r"|globaltimer|globaltimer_lo|globaltimer_hi"
    r"|reserved_smem_offset_(?:begin|end|cap|[0-9]+)"
    r"|total_smem_size|aggr_smem_size|dynamic_smem_size|current_graph_exec"
    r")"
)
# Prefixes of predefined registers that end in a number, and the largest such number.
_NUMBERED: Final = ("%envreg", "%pm", "%clock", "%reserved_smem_offset_")
_LARGEST_NUMBER: Final = 64


def is_special_register(name: str) -> bool:
    """Return whether ``name`` (with its ``%``, and a ``.x`` suffix or none) is predefined."""
    return _SPECIAL.fullmatch(name) is not None


def covers_special_register(prefix: str, count: int) -> bool:
    """Return whether ``prefix<count>`` declares a predefined name, as ``%clock<65>`` does."""
    return prefix.startswith(_NUMBERED) and any(
        is_special_register(f"{prefix}{i}") for i in range(min(count, _LARGEST_NUMBER + 1))
    )
