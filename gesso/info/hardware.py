"""The graphics cards of `gesso info --gpu`: datasheet figures, their sources, and whether they were checked.

Rates are dense (without structured sparsity), with sums in float32. GeForce cards compute such sums at half the rate of
their headline figures, workstation and data-centre cards at the full rate. `source` names the vendor's paper. "checked"
means that an independent public listing gives the same figure; the papers themselves were not available. Memory as the
driver reports it comes from public `nvidia-smi` logs.

A lane of PCIe 4.0 and 5.0 transfers 16 and 32 GT/s with 128b/130b encoding (PCI Express base specification). Copies get
less: 55 of 63 GB/s with 16 lanes of PCIe 5.0, measured with pinned memory on an H200.
"""

from dataclasses import dataclass

from gesso.errors import InputError

MIB = 2**20
LANE_GBS = {4: 16 * 128 / 130 / 8, 5: 32 * 128 / 130 / 8}  # by generation of PCIe, in one direction
PCIE_SHARE = 0.8  # of the theoretical rate that copies get


@dataclass(frozen=True, kw_only=True)
class Card:
    name: str  # value of --gpu
    title: str
    memory_gb: float  # as sold
    driver_mib: int  # as the driver reports it
    system_gb: float = 0.0  # share of the operating system, where CPU and GPU share one memory
    bandwidth_gbs: float
    bf16_tflops: float
    fp8_tflops: float | None  # None: not in hardware
    fp4_tflops: float | None
    pcie: tuple[int, int] | None  # generation and lanes; None: CPU and GPU share their memory, or have another link
    source: str
    note: str = ""

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


_ALL = (
    Card(
        name="rtx-4060",
        title="GeForce RTX 4060",
        memory_gb=8,
        driver_mib=8_188,
        bandwidth_gbs=272,
        bf16_tflops=30.2,
        fp8_tflops=60.5,
        fp4_tflops=None,
        pcie=(4, 8),
        source=(
            "NVIDIA product page; memory, bandwidth and PCIe not checked; rates: derived from cores and "
            "clock by the ratios of the RTX 4090, not checked"
        ),
    ),
    Card(
        name="rtx-5060",
        title="GeForce RTX 5060",
        memory_gb=8,
        driver_mib=8_151,
        bandwidth_gbs=448,
        bf16_tflops=38.4,
        fp8_tflops=76.7,
        fp4_tflops=306.8,
        pcie=(5, 8),
        source=(
            "NVIDIA product page; memory, bandwidth and PCIe checked; rates: derived from cores and clock by the "
            "ratios of the RTX 5090, not checked"
        ),
        note="In a PCIe 4.0 slot, copies take twice as long.",
    ),
    Card(
        name="rtx-4070",
        title="GeForce RTX 4070",
        memory_gb=12,
        driver_mib=12_282,
        bandwidth_gbs=504,
        bf16_tflops=58.3,
        fp8_tflops=116.6,
        fp4_tflops=None,
        pcie=(4, 16),
        source=(
            "NVIDIA product page; memory, bandwidth and PCIe checked; rates: derived from cores and clock by the "
            "ratios of the RTX 4090, not checked"
        ),
    ),
    Card(
        name="rtx-4080",
        title="GeForce RTX 4080",
        memory_gb=16,
        driver_mib=16_376,
        bandwidth_gbs=716.8,
        bf16_tflops=97.5,
        fp8_tflops=195.0,
        fp4_tflops=None,
        pcie=(4, 16),
        source=(
            "NVIDIA Ada architecture whitepaper; memory, bandwidth and PCIe checked; rates: derived from cores and "
            "clock by the ratios of the RTX 4090, not checked"
        ),
    ),
    Card(
        name="rtx-5070-ti",
        title="GeForce RTX 5070 Ti",
        memory_gb=16,
        driver_mib=16_303,
        bandwidth_gbs=896,
        bf16_tflops=87.9,
        fp8_tflops=175.8,
        fp4_tflops=703.0,
        pcie=(5, 16),
        source=(
            "NVIDIA product page; memory, bandwidth and PCIe not checked; rates: derived from cores and "
            "clock by the ratios of the RTX 5090, not checked"
        ),
        note="In a PCIe 4.0 slot, copies take twice as long.",
    ),
    Card(
        name="rtx-4090",
        title="GeForce RTX 4090",
        memory_gb=24,
        driver_mib=24_564,
        bandwidth_gbs=1008,
        bf16_tflops=165.2,
        fp8_tflops=330.3,
        fp4_tflops=None,
        pcie=(4, 16),
        source="NVIDIA Ada architecture whitepaper; all checked",
    ),
    Card(
        name="rtx-5090",
        title="GeForce RTX 5090",
        memory_gb=32,
        driver_mib=32_607,
        bandwidth_gbs=1792,
        bf16_tflops=209.5,
        fp8_tflops=419.0,
        fp4_tflops=1676.0,
        pcie=(5, 16),
        source=(
            "NVIDIA RTX Blackwell architecture whitepaper; memory, bandwidth and fp4 checked; fp8: a published "
            "measurement of the 5090 D reaches 427; bf16: datasheet, not checked"
        ),
    ),
    Card(
        name="rtx-pro-6000",
        title="RTX PRO 6000 Blackwell Workstation Edition",
        memory_gb=96,
        driver_mib=97_887,
        bandwidth_gbs=1792,
        bf16_tflops=503.8,
        fp8_tflops=1007.6,
        fp4_tflops=2015.2,
        pcie=(5, 16),
        source=(
            "NVIDIA RTX PRO Blackwell architecture whitepaper; memory, bandwidth and fp4 checked; bf16 and fp8: one "
            "listing agrees, another halves them for a sister card"
        ),
        note="The 300 W Max-Q edition has the same memory and bandwidth and less compute.",
    ),
    Card(
        name="dgx-spark",
        title="DGX Spark (GB10)",
        memory_gb=128,
        driver_mib=119 * 1024,
        system_gb=8.0,
        bandwidth_gbs=273,
        bf16_tflops=125.0,
        fp8_tflops=250.0,
        fp4_tflops=500.0,
        pcie=None,
        source=(
            "NVIDIA DGX Spark datasheet; memory, bandwidth and 1 PFLOP/s of sparse fp4 checked; dense fp4 is half of "
            "that, fp8 and bf16 a quarter and an eighth: derived, not checked (other listings give bf16 up to 209)"
        ),
        note="Unified memory: CPU and GPU share it; 8 GB are reserved for the system here (our assumption).",
    ),
    Card(
        name="dgx-station",
        title="DGX Station (GB300)",
        memory_gb=252,
        driver_mib=256_703,
        bandwidth_gbs=7100,
        bf16_tflops=2500.0,
        fp8_tflops=5000.0,
        fp4_tflops=15_000.0,
        pcie=None,
        source=(
            "NVIDIA DGX Station datasheet; memory and bandwidth checked (the announcement still said 288 GB, 8 TB/s); "
            "rates: those of a GB300 in a rack, checked, but not checked for the station"
        ),
        note="Coherent memory: the CPU adds 496 GB (LPDDR5X) to the GPU's own; only the latter counts here.",
    ),
    Card(
        name="h100",
        title="H100 SXM",
        memory_gb=80,
        driver_mib=81_559,
        bandwidth_gbs=3350,
        bf16_tflops=989.4,
        fp8_tflops=1978.9,
        fp4_tflops=None,
        pcie=(5, 16),
        source="NVIDIA H100 datasheet, halved where it counts sparsity; all checked",
    ),
    Card(
        name="h200",
        title="H200 SXM",
        memory_gb=141,
        driver_mib=143_771,
        bandwidth_gbs=4800,
        bf16_tflops=989.4,
        fp8_tflops=1978.9,
        fp4_tflops=None,
        pcie=(5, 16),
        source="NVIDIA H200 datasheet, halved where it counts sparsity; all checked",
    ),
)
CARDS = {card.name: card for card in _ALL}


def find(name: str) -> Card:
    if name not in CARDS:
        raise InputError(f"unknown card {name!r}; known cards are {', '.join(CARDS)}")
    return CARDS[name]
