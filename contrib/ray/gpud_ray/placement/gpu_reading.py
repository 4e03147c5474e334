"""What a heartbeat says of one GPU: its fixed figures, and how much of it is idle."""

from __future__ import annotations

from dataclasses import dataclass

from gpud.errors import InvalidArgument

__all__ = ["GPUReading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUReading:
    """A GPU at the time of a heartbeat.

    Attributes:
        index: Among the devices of the node's gpud.
        name: The device's name.
        core_clock_mhz: Highest clock of the cores; an idle GPU clocks down, and up for an item.
        sms: How many SMs it has.
        cores_per_sm: Cores of an SM, which follow from the compute capability; of a CPU device,
            see `gpud_ray.node.gpu_figures`.
        idle_cores: The part of its capacity that no job has, 0 to 1.
        memory_clock_mhz: Highest clock of the memory.
        bus_width_bits: Width of the memory's bus.
        idle_bandwidth: The part of the memory's bandwidth that is not used, 0 to 1; None: unknown.
        memory_bytes: What arrays may take in all.
        memory_free_bytes: What of it is free.
        warps_per_sm: How many warps an SM can hold.
        jobs: How many jobs of any program it has.
        reserved_sms: What of its SMs nobody else can reserve, in CapSM.
        temporary_bytes: The temporary memory that its workloads share in turns; part of what is not
            free.
        paused: Whether it starts no job now: it gets no item until it goes on.
    """

    index: int
    name: str
    core_clock_mhz: float
    sms: int
    cores_per_sm: float
    idle_cores: float
    memory_clock_mhz: float
    bus_width_bits: float
    idle_bandwidth: float | None
    memory_bytes: int
    memory_free_bytes: int
    warps_per_sm: int = 64
    jobs: int = 0
    reserved_sms: float = 0.0
    temporary_bytes: int = 0
    paused: bool = False

    def __post_init__(self) -> None:
        for name in ("core_clock_mhz", "sms", "cores_per_sm", "memory_clock_mhz",
                     "bus_width_bits", "warps_per_sm"):  # fmt: skip
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise InvalidArgument(f"a GPU's {name} is over 0, not {value!r}")
        for name in ("idle_cores", "idle_bandwidth"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InvalidArgument(f"a GPU's {name} is a part, 0 to 1, not {value!r}")
        if not 0 <= self.memory_free_bytes <= self.memory_bytes or self.jobs < 0:
            raise InvalidArgument(
                f"a GPU has 0 to {self.memory_bytes} bytes free, and no fewer than 0 jobs; not "
                f"{self.memory_free_bytes} and {self.jobs}"
            )

    @property
    def peak_core_mhz(self) -> float:
        """Clock x SMs x cores of an SM: millions of core cycles a second if all of it is idle."""
        return self.core_clock_mhz * self.sms * self.cores_per_sm

    @property
    def peak_mbit_s(self) -> float:
        """Memory clock x bus width: millions of bits a second, without the factor of data rates."""
        return self.memory_clock_mhz * self.bus_width_bits
