"""The model in which time passes only when a test steps it: `SteppedDriver.step` does one thing.

Kernels do what the rewriter makes of them, reduced to what the device sees: a block reads whether
it is to stay and whether its SM is barred, claims, and counts (`tests.driver_model.blocks`). Blocks
are placed on SMs, those on streams of green contexts on the contexts' SMs only. A call that waits
lets time pass until it is done; one that also waits for the device is only recorded
(`ModelDriver.waits`): gpud may make none of them while anything runs.
"""

from __future__ import annotations

import random
import struct
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from gpud.compiler.ptx.model import Variable
from gpud.compiler.ptx.parser import parse
from tests.driver_model import modules
from tests.driver_model.blocks import Block, blocks_of
from tests.driver_model.model_driver import ModelDriver
from tests.driver_model.modules import Entry, Loaded, RefusedError

_VARIABLE_BYTES = 64


class Resident:
    """A kernel on the device: its pending and its resident blocks."""

    def __init__(
        self, launch: modules.Launch, blocks: list[Block], over: Callable[[], None]
    ) -> None:
        self.name = launch.function.name
        self.sms = launch.stream.sms
        self.over = over
        self.pending = deque(blocks)
        self.resident: list[Block] = []
        self.placed: Counter[int] = Counter()


class SteppedDriver(ModelDriver):
    """The model, with blocks that proceed one step at a time.

    Args:
        seed: of the order in which streams and blocks proceed.
        room: how many blocks of size 1 can be resident, equally many on each SM.
        sms: how many SMs there are.
        unit: the fewest SMs of a green context; a smaller remainder is left over.
        version: of CUDA, as the driver reports it.
        reported_sms: SMs whose blocks read another ``%smid`` than the SM's own.

    Attributes:
        ran: (kernel, address of the job record, task block), in order.
        where: the SM on which each of these ran.
        faults: task blocks that fault: (kernel, task block) to a `FaultKind`.
        log: the driver's log of a load that fails.
        occupancy: the occupancy of every kernel.
        sizes: how much room a block takes, for kernels whose blocks take more than 1.
        stalled: kernels whose blocks do not proceed.
        launches: the kernels on the device.
    """

    def __init__(
        self,
        seed: int = 0,
        room: int = 64,
        *,
        sms: int = 4,
        unit: int = 1,
        version: int = 13000,
        reported_sms: Mapping[int, int] | None = None,
    ) -> None:
        device = {
            "MULTIPROCESSOR_COUNT": sms,
            "UNIT": unit,
            "VERSION": version,
            "SEED": seed,
            "MAX_THREADS_PER_BLOCK": 512,
        }
        super().__init__(self, device, granule=1 << 16)
        self.random = random.Random(seed)
        self.room = room
        self.sms = sms
        self.reported_sms = reported_sms or {}
        self.memory.free_bytes = 12345
        self.ran: list[tuple[str, int, int]] = []
        self.where: list[int] = []
        self.faults: dict[tuple[str, int], Any] = {}
        self.log = "ptxas fatal: nothing is right here\nmore\n"
        self.occupancy = 2
        self.sizes: dict[str, int] = {}
        self.stalled: set[str] = set()
        self.launches: list[Resident] = []

    # -- time

    def moved(self, stream: Any) -> None:
        """Do nothing: only a step does."""

    def wait(self, done: Callable[[], bool], only: Any = None) -> None:
        """Let time pass until ``done``."""
        while not done():
            stepped = self.step() if only is None else self.streams.begin_next(only)
            assert stepped or done(), "waits for ever"

    def wait_for_all(self) -> None:
        """Do nothing: the wait was recorded."""

    @property
    def resident(self) -> int:
        """How many blocks are resident."""
        return sum(len(launch.resident) for launch in self.launches)

    def on_sms(self, name: str = "") -> Counter[int]:
        """How many blocks are there on each SM, of kernels whose name begins so."""
        return Counter(
            block.sm
            for launch in self.launches
            if launch.name.startswith(name)
            for block in launch.resident
        )

    def step(self) -> bool:
        """Do one thing that can be done; whether there was one."""
        ways: list[Callable[[], bool]] = []
        for stream in self.streams.all:
            if stream.queue and not stream.busy:
                ways.append(lambda stream=stream: self.streams.begin_next(stream))  # type: ignore[misc]
        for launch in self.launches:
            if not launch.pending and not launch.resident:  # a test took its blocks away
                ways.append(lambda launch=launch: self._end(launch))  # type: ignore[misc]
            if launch.pending:
                ways.append(lambda launch=launch: self._admit(launch))  # type: ignore[misc]
            if launch.resident and launch.name not in self.stalled:
                ways.append(lambda launch=launch: self._go_on(launch))  # type: ignore[misc]
        self.random.shuffle(ways)
        return any(way() for way in ways)

    def run(self, steps: int = 1_000_000) -> None:
        """Step until nothing is left to do, at most ``steps`` times."""
        for _ in range(steps):
            if not self.step():
                return

    def _go_on(self, launch: Resident) -> bool:
        block = self.random.choice(launch.resident)
        if next(block.doing, self) is self:
            launch.resident.remove(block)
            self._end(launch)
        return True

    def _admit(self, launch: Resident) -> bool:
        """Place pending blocks of a launch; whether there was room for some."""
        before = len(launch.resident)
        size = self.sizes.get(launch.name, 1)
        there: Counter[int] = Counter()
        for other in self.launches:
            for block in other.resident:
                there[block.sm] += self.sizes.get(other.name, 1)
        while launch.pending and there.total() < self.room:
            sms = range(self.sms) if launch.sms is None else launch.sms
            free = [sm for sm in sms if there[sm] + size <= -(-self.room // self.sms)]
            if not free:
                break
            self.random.shuffle(free)
            block = launch.pending.popleft()
            block.sm = min(free, key=lambda sm: (there[sm], launch.placed[sm]))
            launch.placed[block.sm] += 1
            there[block.sm] += size
            launch.resident.append(block)
        return len(launch.resident) > before

    def _end(self, launch: Resident) -> bool:
        """Remove a launch if it is over; whether it was."""
        if launch.pending or launch.resident:
            return False
        self.launches.remove(launch)
        launch.over()
        return True

    # -- programs

    def load(self, text: str) -> Loaded:
        """Load a program; its variables have memory of their own."""
        if modules.REFUSED.decode() in text:
            raise RefusedError(self.log)
        program = parse(text)
        variables = {}
        for item in program.items:
            if isinstance(item, Variable) and item.space in ("global", "const"):
                address = self.memory.allocate("variable", _VARIABLE_BYTES)
                held = self.memory.give("variable", address)  # the module adds it again
                variables[item.name] = address, _VARIABLE_BYTES, held
        entries = {name: Entry.of(entry) for name, entry in program.entries().items()}
        places = {name: (address, size) for name, (address, size, _) in variables.items()}
        return Loaded((program, variables), entries, places)

    def unload(self, loaded: Loaded) -> None:
        """Do nothing: its variables are freed with it."""

    def fits(self, threads: int) -> int:
        """The occupancy."""
        return self.occupancy

    def start(self, launch: modules.Launch, over: Callable[[], None]) -> None:
        """Make the blocks of a kernel pending, and place those for which there is room."""
        made = Resident(launch, blocks_of(self, launch), over)
        self.launches.append(made)
        self._admit(made)

    def written(self, address: int) -> None:
        """Do nothing: blocks read the word by themselves."""

    # -- words

    def u32(self, address: int) -> int:
        """Read a word."""
        return int(struct.unpack("<I", self.memory.read(address, 4))[0])

    def u64(self, address: int) -> int:
        """Read two words."""
        return int(struct.unpack("<Q", self.memory.read(address, 8))[0])

    def put(self, address: int, value: int) -> None:
        """Write a word."""
        self.memory.write(address, struct.pack("<I", value & 0xFFFFFFFF))

    def put8(self, address: int, value: int) -> None:
        """Write a byte."""
        self.memory.write(address, bytes([value]))

    def put16(self, address: int, value: int) -> None:
        """Write half a word."""
        self.memory.write(address, struct.pack("<H", value))
