"""The bounds of a block's shared memory, to the byte.

In persistent form the loop's slots for handing out task blocks follow it; a kernel must not reach
them.
"""

from __future__ import annotations

import numpy as np
import pytest

from gpud.device.interface import Form
from gpud.errors import GpudError, IllegalAddress
from tests.unit.cpu.codegen.checked_arena import HEAD, Arena

BLOCKS = 5
"""Task blocks; a launch's persistent blocks run several each, so the loop's slots are in use."""

STATIC_BYTES = 40
"""Not a multiple of 16, so there is padding between the variables and the loop's slots."""


ACCESSES = {
    "load": "ld.shared.u8 %r3, [%r1];",
    "store": "st.shared.u8 [%r1], 255;",
    "word": "ld.shared.u32 %r3, [%r1+-3];",
    "atomic": "atom.shared.add.u32 %r3, [%r1+-3], 1;",
    "generic load": "ld.u8 %r3, [%rd2];",
    "generic store": "st.u8 [%rd2], 255;",
    "generic atomic": "atom.add.u32 %r3, [%rd2+-3], 1;",
}
"""Accesses whose last byte is the one at %r1, and generic at %rd2."""

WORDS = ("word", "atomic", "generic atomic")

LAYOUTS = {"static": (True, 0), "dynamic": (False, 24), "both": (True, 24), "none": (False, 0)}
"""Whether there is a static variable, and bytes of dynamic shared memory."""


def program(static: bool, dynamic: bool) -> str:
    """One thread of each task block makes the access ``kind`` at ``at``, then counts the block."""
    known = f".shared .align 4 .b8 box[{STATIC_BYTES}];" if static else ""
    more = ".extern .shared .align 4 .b8 more[];" if dynamic else ""
    # Each variable must be used, or it would not be placed.
    used = "mov.u32 %r5, box; " * static + "mov.u32 %r5, more;" * dynamic
    chosen = "\n".join(
        f"setp.eq.u32 %p, %r6, {number}; @%p {access}"
        for number, access in enumerate(ACCESSES.values())
    )
    return f"""{HEAD}{more}
    .visible .entry k(.param .u64 counter, .param .u32 kind, .param .u32 at)
    {{ .reg .u32 %r<9>; .reg .u64 %rd<9>; .reg .pred %p; {known}
    ld.param.u64 %rd1, [counter]; ld.param.u32 %r1, [at]; ld.param.u32 %r6, [kind];
    mov.u32 %r4, %tid.x; {used} setp.ne.u32 %p, %r4, 0; @%p bra OUT;
    cvt.u64.u32 %rd2, %r1; cvta.shared.u64 %rd2, %rd2; {chosen}
    red.global.add.u32 [%rd1], 1;
    OUT: ret; }}"""


@pytest.mark.parametrize("form", ["persistent", "sliced"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_sides(world: Arena, layout: str, form: Form) -> None:
    static, dynamic = LAYOUTS[layout]
    size = -(-STATIC_BYTES // 16) * 16 * static + dynamic if dynamic else STATIC_BYTES * static
    text = program(static, bool(dynamic))

    def access(kind: str, at: int) -> tuple[GpudError | None, int]:
        """(the job's error, how many task blocks were counted)."""
        world.words()[0] = 0
        values = world.base, np.uint32(list(ACCESSES).index(kind)), np.uint32(at % 2**32)
        error = world.run(text, *values, form=form, grid=BLOCKS, shared=dynamic)
        return error, int(world.words()[0])

    for kind in ACCESSES:
        if size:
            assert access(kind, size - 1) == (None, BLOCKS)
            assert access(kind, 3) == (None, BLOCKS)
        span = 4 if kind in WORDS else 1
        # Everything within a cache line of the end, and before the start.
        for at in [*range(size + span - 1, size + 64, span), span - 1 - 4]:
            error, counted = access(kind, at)
            assert isinstance(error, IllegalAddress), (kind, at)
            assert counted == 0, (kind, at)
            assert error.thread == (0, 0, 0)
            assert not error.misaligned
            if not kind.startswith("generic"):
                assert error.space == "shared"


RESERVED = f"""{HEAD}
.visible .entry k(.param .u64 out, .param .u32 at)
{{ .reg .u32 %r<9>; .reg .u64 %rd<4>; .shared .align 4 .b8 box[{STATIC_BYTES}];
ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [at];
st.shared.u32 [box+{STATIC_BYTES - 4}], 7;
mov.u32 %r2, %reserved_smem_offset_1; mov.u32 %r3, %reserved_smem_offset_end;
mov.u32 %r4, %reserved_smem_offset_cap; mov.u32 %r5, %total_smem_size;
add.u32 %r6, %r2, %r1; st.shared.u32 [%r6], 9;
sub.u32 %r3, %r3, %r2; ld.shared.u32 %r7, [box+{STATIC_BYTES - 4}];
st.global.v4.u32 [%rd1], {{%r3, %r4, %r5, %r7}}; ret; }}"""


@pytest.mark.parametrize("form", ["persistent", "sliced"])
def test_reserved_shared_memory_is_separate(world: Arena, form: Form) -> None:
    for at in (0, 1020):
        world.bytes[:] = 0
        assert world.run(RESERVED, world.base, np.int32(at), form=form, block=1) is None
        end, cap, size, mine = world.words()[:4].tolist()
        assert (end, cap, mine) == (1024, 1024, 7)
        assert STATIC_BYTES <= size < STATIC_BYTES + 16
    error = world.run(RESERVED, world.base, np.int32(1024), form=form, block=1)
    assert isinstance(error, IllegalAddress)
    assert error.space == "shared"


MASKED = f"""{HEAD}.extern .shared .align 16 .b8 more[];
.visible .entry k(.param .u64 out)
{{ .reg .u32 %r<9>; .reg .u64 %rd<4>; ld.param.u64 %rd1, [out];
st.shared.u32 [more+16], 5; st.shared.u32 [more+20], 6; st.shared.u8 [more+26], 7;
.pragma "used_bytes_mask 4095";
ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [more+16];
shr.u32 %r3, %r3, 16; and.b32 %r3, %r3, 255;
st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r2; st.global.u32 [%rd1+8], %r3; ret; }}"""


@pytest.mark.parametrize("form", ["persistent", "sliced"])
def test_a_load_may_reach_beyond_the_end_with_bytes_that_are_not_used(
    world: Arena, form: Form
) -> None:
    """NVVM reads the last three of seven words as four, and says which bytes it uses."""
    world.bytes[:] = 0
    assert world.run(MASKED, world.base, form=form, block=1, shared=28) is None
    assert world.words()[:3].tolist() == [5, 6, 7]
    error = world.run(MASKED, world.base, form=form, block=1, shared=27)
    assert isinstance(error, IllegalAddress)
    assert error.space == "shared"
