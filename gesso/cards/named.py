"""The graphics cards of `gesso info --gpu`: datasheet figures, their sources, and whether they were checked.

Rates are dense (without structured sparsity), with sums in float32. GeForce cards compute such sums at half the rate of
their headline figures, workstation and data-centre cards at the full rate. `source` names the vendor's paper. "checked"
means that an independent public listing gives the same figure; the papers themselves were not available. Memory as the
driver reports it comes from public `nvidia-smi` logs, except for cards whose memory is "not checked". Processors and L2
are as the vendors state them, and were not checked either; for the DGX Station they are those of a GB300 in a rack.

A lane of PCIe 4.0 and 5.0 transfers 16 and 32 GT/s with 128b/130b encoding (PCI Express base specification). Copies get
less: 55 of 63 GB/s with 16 lanes of PCIe 5.0, measured with pinned memory on an H200.
"""

from gesso.cards.card import SHARED_KIB, Card
from gesso.errors import InputError

_ALL = (
    Card(
        name="rtx-4060",
        title="GeForce RTX 4060",
        capability=(8, 9),
        processors=24,
        shared_kib=SHARED_KIB[8, 9],
        l2_mib=24,
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
        capability=(12, 0),
        processors=30,
        shared_kib=SHARED_KIB[12, 0],
        l2_mib=32,
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
        capability=(8, 9),
        processors=46,
        shared_kib=SHARED_KIB[8, 9],
        l2_mib=36,
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
        name="rtx-3060",
        title="GeForce RTX 3060",
        capability=(8, 6),
        processors=28,
        shared_kib=SHARED_KIB[8, 6],
        l2_mib=3,
        memory_gb=12,
        driver_mib=12_288,
        bandwidth_gbs=360,
        bf16_tflops=25.5,
        fp8_tflops=None,
        fp4_tflops=None,
        pcie=(4, 16),
        source=(
            "NVIDIA Ampere GA102 architecture whitepaper; memory, bandwidth and PCIe not checked; rates: derived from "
            "cores and clock by the ratios of the RTX 3090, not checked"
        ),
        note="Without FP8 in hardware, fp8 and 4-bit weights save bytes and are multiplied in bf16.",
    ),
    Card(
        name="rtx-4080",
        title="GeForce RTX 4080",
        capability=(8, 9),
        processors=76,
        shared_kib=SHARED_KIB[8, 9],
        l2_mib=64,
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
        capability=(12, 0),
        processors=70,
        shared_kib=SHARED_KIB[12, 0],
        l2_mib=48,
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
        name="rtx-5080",
        title="GeForce RTX 5080",
        capability=(12, 0),
        processors=84,
        shared_kib=SHARED_KIB[12, 0],
        l2_mib=64,
        memory_gb=16,
        driver_mib=16_303,
        bandwidth_gbs=960,
        bf16_tflops=112.6,
        fp8_tflops=225.1,
        fp4_tflops=900.4,
        pcie=(5, 16),
        source=(
            "NVIDIA RTX Blackwell architecture whitepaper; memory, bandwidth, PCIe and fp4 not checked; other rates: "
            "derived from cores and clock by the ratios of the RTX 5090, not checked"
        ),
        note="In a PCIe 4.0 slot, copies take twice as long.",
    ),
    Card(
        name="rtx-3090",
        title="GeForce RTX 3090",
        capability=(8, 6),
        processors=82,
        shared_kib=SHARED_KIB[8, 6],
        l2_mib=6,
        memory_gb=24,
        driver_mib=24_576,
        bandwidth_gbs=936,
        bf16_tflops=71.0,
        fp8_tflops=None,
        fp4_tflops=None,
        pcie=(4, 16),
        source=("NVIDIA Ampere GA102 architecture whitepaper; not checked"),
        note="Without FP8 in hardware, fp8 and 4-bit weights save bytes and are multiplied in bf16.",
    ),
    Card(
        name="rtx-4090",
        title="GeForce RTX 4090",
        capability=(8, 9),
        processors=128,
        shared_kib=SHARED_KIB[8, 9],
        l2_mib=72,
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
        name="l4",
        title="L4",
        capability=(8, 9),
        processors=58,
        shared_kib=SHARED_KIB[8, 9],
        l2_mib=48,
        memory_gb=24,
        driver_mib=23_034,
        bandwidth_gbs=300,
        bf16_tflops=121.0,
        fp8_tflops=242.5,
        fp4_tflops=None,
        pcie=(4, 16),
        source=("NVIDIA L4 datasheet, halved where it counts sparsity; not checked"),
    ),
    Card(
        name="rtx-5090",
        title="GeForce RTX 5090",
        capability=(12, 0),
        processors=170,
        shared_kib=SHARED_KIB[12, 0],
        l2_mib=96,
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
        name="l40s",
        title="L40S",
        capability=(8, 9),
        processors=142,
        shared_kib=SHARED_KIB[8, 9],
        l2_mib=96,
        memory_gb=48,
        driver_mib=46_068,
        bandwidth_gbs=864,
        bf16_tflops=362.0,
        fp8_tflops=733.0,
        fp4_tflops=None,
        pcie=(4, 16),
        source=("NVIDIA L40S datasheet, halved where it counts sparsity; not checked"),
    ),
    Card(
        name="rtx-pro-6000",
        title="RTX PRO 6000 Blackwell Workstation Edition",
        capability=(12, 0),
        processors=188,
        shared_kib=SHARED_KIB[12, 0],
        l2_mib=128,
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
        capability=(12, 1),
        processors=48,
        shared_kib=SHARED_KIB[12, 1],
        l2_mib=24,
        memory_gb=128,
        driver_mib=119 * 1024,
        system_gb=8.0,
        integrated=True,
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
        capability=(10, 3),
        processors=148,
        shared_kib=SHARED_KIB[10, 3],
        l2_mib=126,
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
        name="a100",
        title="A100 SXM 80 GB",
        capability=(8, 0),
        processors=108,
        shared_kib=SHARED_KIB[8, 0],
        l2_mib=40,
        memory_gb=80,
        driver_mib=81_920,
        bandwidth_gbs=2039,
        bf16_tflops=312.0,
        fp8_tflops=None,
        fp4_tflops=None,
        pcie=(4, 16),
        source=("NVIDIA A100 Tensor Core GPU architecture whitepaper and datasheet; not checked"),
        note="Without FP8 in hardware, fp8 and 4-bit weights save bytes and are multiplied in bf16.",
    ),
    Card(
        name="h100",
        title="H100 SXM",
        capability=(9, 0),
        processors=132,
        shared_kib=SHARED_KIB[9, 0],
        l2_mib=50,
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
        capability=(9, 0),
        processors=132,
        shared_kib=SHARED_KIB[9, 0],
        l2_mib=50,
        memory_gb=141,
        driver_mib=143_771,
        bandwidth_gbs=4800,
        bf16_tflops=989.4,
        fp8_tflops=1978.9,
        fp4_tflops=None,
        pcie=(5, 16),
        source="NVIDIA H200 datasheet, halved where it counts sparsity; all checked",
    ),
    Card(
        name="b200",
        title="B200 SXM",
        capability=(10, 0),
        processors=148,
        shared_kib=SHARED_KIB[10, 0],
        l2_mib=126,
        memory_gb=180,
        driver_mib=183_359,
        bandwidth_gbs=8000,
        bf16_tflops=2250.0,
        fp8_tflops=4500.0,
        fp4_tflops=9000.0,
        pcie=(5, 16),
        source=("NVIDIA HGX B200 datasheet, halved where it counts sparsity; not checked"),
    ),
)
CARDS = {card.name: card for card in _ALL}


def find(name: str) -> Card:
    if name not in CARDS:
        raise InputError(f"unknown card {name!r}; known cards are {', '.join(CARDS)}")
    return CARDS[name]
