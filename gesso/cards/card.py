"""One description of a graphics card, for memory plans and for the choice of kernels.

What follows from the compute capability is from the tables "Feature Support per Compute Capability" and "Technical
Specifications per Compute Capability" of NVIDIA's CUDA C++ Programming Guide, and from the required targets of
instructions in the PTX ISA.
"""

from dataclasses import dataclass

KIB, MIB = 2**10, 2**20
LANE_GBS = {4: 16 * 128 / 130 / 8, 5: 32 * 128 / 130 / 8}  # by generation of PCIe, in one direction
PCIE_SHARE = 0.8  # of the theoretical rate that copies get
# Shared memory in KiB by compute capability: the most that a block may use, and what an SM has for all its blocks.
SHARED_KIB = {
    (8, 0): (163, 164),
    (8, 6): (99, 100),
    (8, 9): (99, 100),
    (9, 0): (227, 228),
    (10, 0): (227, 228),
    (10, 3): (227, 228),
    (12, 0): (99, 100),
    (12, 1): (99, 100),
}


@dataclass(frozen=True, kw_only=True, eq=False)  # a card equals itself alone: launches look up tilings by it
class Card:
    """A graphics card. Rates are dense, with sums in float32; 0 and None of a running card, whose driver has none."""

    name: str  # value of --gpu; empty: the running card
    title: str
    capability: tuple[int, int]
    processors: int  # SMs
    shared_kib: tuple[int, int]  # for a block, and for an SM
    l2_mib: float
    memory_gb: float  # as sold
    driver_mib: int  # as the driver reports it
    system_gb: float = 0.0  # share of the operating system, where CPU and GPU share one memory
    integrated: bool = False  # CPU and GPU share one memory
    bandwidth_gbs: float
    bf16_tflops: float = 0.0
    fp8_tflops: float | None = None  # None: not in hardware
    fp4_tflops: float | None = None
    pcie: tuple[int, int] | None = None  # generation and lanes; None: CPU and GPU share their memory, or another link
    source: str
    note: str = ""

    # --- memory and rates -------------------------------------------------------------------------------------------

    @property
    def total_bytes(self) -> int:
        return self.driver_mib * MIB

    @property
    def usable_bytes(self) -> int:
        return self.total_bytes - round(self.system_gb * 1e9)

    @property
    def pcie_gbs(self) -> float | None:
        """GB/s of copies from host memory."""
        if self.pcie is None:
            return None
        generation, lanes = self.pcie
        return PCIE_SHARE * LANE_GBS[generation] * lanes

    def native_tflops(self, precision: str) -> float | None:
        return {"bf16": self.bf16_tflops, "fp8": self.fp8_tflops, "4-bit": self.fp4_tflops}[precision]

    def has(self, precision: str) -> bool:
        """Return whether the card multiplies in this precision. If not, weights are widened when they are read."""
        return self.native_tflops(precision) is not None

    def tflops(self, precision: str) -> float:
        """Return the rate of products with weights in this precision: that of bf16 if the card lacks it."""
        return self.native_tflops(precision) or self.bf16_tflops

    # --- kernels ----------------------------------------------------------------------------------------------------

    @property
    def block_bytes(self) -> int:
        """The shared memory that one block may use."""
        return self.shared_kib[0] * KIB

    @property
    def processor_bytes(self) -> int:
        """The shared memory of an SM, for all its blocks."""
        return self.shared_kib[1] * KIB

    @property
    def runs_kernels(self) -> bool:
        """Whether the kernels run: products in bfloat16, and asynchronous copies to shared memory (`cp.async`)."""
        return self.capability >= (8, 0)

    @property
    def converts_e4m3(self) -> bool:
        """Whether the card converts between FP8 (e4m3) and wider formats."""
        return self.capability >= (8, 9)

    @property
    def multiplies_bf16_pairs(self) -> bool:
        """Whether the card has `mul.bf16x2`, with which kernels convert four-bit weights."""
        return self.capability >= (9, 0)

    @property
    def has_copy_engine(self) -> bool:
        """Whether the copy engine (TMA) fetches tiles to shared memory. Without it, Triton loads them as pointers."""
        return self.capability >= (9, 0)

    @property
    def launches_early(self) -> bool:
        """Whether a kernel can start before the one that it depends on has ended."""
        return self.capability >= (9, 0)

    @property
    def has_warp_group_products(self) -> bool:
        """Whether warp groups multiply tiles from shared memory (`wgmma`): Hopper alone."""
        return self.capability == (9, 0)

    @property
    def multiplies_from_shared_memory(self) -> bool:
        """Whether the tile that is multiplied stays in shared memory. Elsewhere it is in registers by then."""
        return self.has_warp_group_products or self.has_tensor_memory

    def tiles_in_memory(self, stages: int) -> int:
        """Return how many tiles of a pipeline with this many stages are in shared memory at once."""
        return stages if self.multiplies_from_shared_memory else max(stages - 1, 1)

    @property
    def has_tensor_memory(self) -> bool:
        """Whether products are summed in tensor memory, and pass through shared memory when they are read."""
        return self.capability[0] == 10
