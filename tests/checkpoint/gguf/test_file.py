"""Headers of GGUF files: read as the `gguf` package reads them, and rejected by name if they are damaged or hostile."""

import random
import struct
import tracemalloc

import gguf
import numpy as np
import pytest

from gesso.checkpoint.gguf.file import read
from gesso.errors import CheckpointError
from tests.checkpoint.gguf import making
from tests.waiting import bounded

U32, U64 = "<I", "<Q"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    given = making.tensors(lambda name: "Q4_K")
    return making.write(tmp_path_factory.mktemp("header") / "model.gguf", given)


def test_metadata_and_tensors_are_those_that_the_package_reads(path):
    found, expected = read(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in expected.fields.items() if not name.startswith("GGUF.")}
    assert list(found.metadata) == list(fields)
    for key, value in fields.items():
        assert np.array_equal(found.metadata[key], float(str(np.float32(value))) if type(value) is float else value)
    assert list(found.tensors) == [tensor.name for tensor in expected.tensors]
    for tensor in expected.tensors:
        stored = found.tensors[tensor.name]
        assert stored.shape == tuple(reversed(tensor.shape.tolist())) and stored.dtype == tensor.tensor_type.name
        assert (stored.offset, stored.nbytes) == (tensor.data_offset, tensor.n_bytes)


def test_every_type_of_metadata_is_read_and_floats_have_their_shortest_decimals(tmp_path):
    given = {"uint8": 200, "int8": -5, "uint16": 60_000, "int16": -9, "uint32": 2**32 - 1, "int32": -1}
    given |= {"uint64": 2**63, "int64": -(2**62), "float32": 1e-6, "float64": 0.1, "bool": True, "string": "ä"}
    changes = {f"some.{kind}": (kind, value) for kind, value in given.items()}
    arrays = {"some.floats": ("array", [0.5, 1.5]), "some.texts": ("array", ["a", "", "▁b"])}
    metadata = read(making.write(tmp_path / "types.gguf", {}, changes | arrays)).metadata
    assert {kind: metadata[f"some.{kind}"] for kind in given} == given
    assert type(metadata["some.bool"]) is bool and type(metadata["some.uint8"]) is int
    assert metadata["some.floats"].tolist() == [0.5, 1.5] and metadata["some.texts"] == ["a", "", "▁b"]


def test_files_in_parts_are_read_as_one_from_any_part(tmp_path, path):
    given = making.tensors(lambda name: "Q4_K")
    making.write(tmp_path / "model.gguf", given, split_max_tensors=20)
    parts = sorted(tmp_path.glob("model-0000?-of-0000?.gguf"))
    assert len(parts) == 3
    for part in (parts[0], parts[2]):
        found = read(part)
        assert found.path == parts[0] and set(found.tensors) == set(given)
        assert found.metadata["diffusion-gemma.block_count"] == 2
    renamed = parts[0].rename(tmp_path / "first.gguf")
    with pytest.raises(CheckpointError, match="one of 3 parts, but its name does not end in -00001-of-00003"):
        read(renamed)
    renamed.rename(parts[0])
    parts[1].rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(CheckpointError, match="model-00002-of-00003.gguf is missing"):
        read(parts[0])
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(CheckpointError, match="00002-of-00003.gguf is not part 2 of 3"):
        read(parts[0])


# --- damaged and hostile headers ----------------------------------------------------------------------------------


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack(U64, len(data)) + data


def entry(name="a", shape=(32,), kind=0, offset=0):
    dims = b"".join(struct.pack(U64, size) for size in shape)
    return string(name) + struct.pack(U32, len(shape)) + dims + struct.pack("<IQ", kind, offset)


def header(metadata=(), tensors=(), *, version=3, counts=None, data=128):
    """Return a file: entries of the metadata and of the table as bytes, then `data` zeros."""
    count = counts or (len(tensors), len(metadata))
    head = b"GGUF" + struct.pack("<IQQ", version, *count) + b"".join((*metadata, *tensors))
    return head + bytes(-len(head) % 32 + data)


def value(key, kind, data):
    return string(key) + struct.pack(U32, kind) + data


HUGE = 2**62
HOSTILE = {
    "not a GGUF file": (b"PK\3\4" + bytes(64), "is not a GGUF file"),
    "an empty file": (b"", "it ends within the magic number"),
    "version 1": (header(version=1), "version 1 is not supported"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "more metadata than bytes": (header(counts=(0, 60_000)), "it ends within the metadata"),
    "more metadata than possible": (header(counts=(0, HUGE)), "the metadata has 4,611,686,018,427,387,904 entries"),
    "more tensors than bytes": (header(counts=(60_000, 0)), "it ends within the table of tensors"),
    "more tensors than possible": (header(counts=(HUGE, 0)), "the table of tensors has"),
    "a key of many bytes": (header([struct.pack(U64, HUGE)]), "a metadata key is a string of"),
    "a value of many bytes": (header([value("k", 8, struct.pack(U64, HUGE))]), "metadata key 'k' is a string of"),
    "a value past the end": (header([value("k", 8, struct.pack(U64, 10_000))]), "it ends within metadata key 'k'"),
    "an array of many numbers": (header([value("k", 9, struct.pack("<IQ", 4, HUGE))]), "metadata key 'k' has"),
    "an array past the end": (
        header([value("k", 9, struct.pack("<IQ", 4, 10_000))]),
        "it ends within metadata key 'k'",
    ),
    "an array of many strings": (header([value("k", 9, struct.pack("<IQ", 8, 10_000))]), "it ends within metadata"),
    "an array of arrays": (header([value("k", 9, struct.pack("<IQ", 9, 1))]), "metadata key 'k' has type 9"),
    "an unknown type of value": (header([value("k", 77, b"")]), "metadata key 'k' has type 77"),
    "a flag that is 2": (header([value("k", 7, b"\2")]), "must be true or false"),
    "text that is not UTF-8": (header([value("k", 8, string(b"\xff\xfe"))]), "is not UTF-8"),
    "a key twice": (header([value("k", 7, b"\1")] * 2), "metadata key 'k' appears twice"),
    "alignment 0": (header([value("general.alignment", 4, struct.pack(U32, 0))]), "power of two"),
    "alignment 48": (header([value("general.alignment", 4, struct.pack(U32, 48))]), "power of two"),
    "alignment of text": (header([value("general.alignment", 8, string("a"))]), "power of two"),
    "a name of many bytes": (
        header(tensors=[struct.pack(U64, 5000) + bytes(6000)]),
        "the name of a tensor is a string",
    ),
    "no dimensions": (header(tensors=[entry(shape=())]), "tensor 'a' has 0 dimensions"),
    "many dimensions": (header(tensors=[entry(shape=(1,) * 5)]), "tensor 'a' has 5 dimensions"),
    "2^32 dimensions": (header(tensors=[string("a") + struct.pack(U32, 2**32 - 1) + bytes(99)]), "dimensions"),
    "an empty tensor": (header(tensors=[entry(shape=(0,))]), r"tensor 'a' has shape \[0\]"),
    "half a block": (header(tensors=[entry(shape=(48,), kind=2)]), "not a whole number of Q4_0 blocks"),
    "a type that gesso does not read": (header(tensors=[entry(kind=22)]), "tensor 'a' has type IQ2_S"),
    "an unknown type": (header(tensors=[entry(kind=99)]), "tensor 'a' has type 99"),
    "a tensor past the end": (header(tensors=[entry(shape=(64,))]), "tensor 'a' ends 128 bytes after the end"),
    "an offset past the end": (header(tensors=[entry(offset=2**63)]), "tensor 'a' ends"),
    "a size that overflows": (header(tensors=[entry(shape=(2**62, 2**62))]), "tensor 'a' ends"),
    "an offset that is not aligned": (header(tensors=[entry(shape=(8,), offset=4)]), "not a multiple of 32"),
    "tensors that overlap": (header(tensors=[entry(), entry("b")]), "tensor 'b' overlaps with tensor 'a'"),
    "a tensor twice": (header(tensors=[entry(shape=(8,)), entry(shape=(8,), offset=32)]), "tensor 'a' appears twice"),
    "a part of many": (header([value("split.count", 8, string("x"))]), "split.count must be a number"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_rejected_with_the_file_and_the_field(tmp_path, case):
    data, message = HOSTILE[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as error:
        read(path)
    assert "model.gguf" in str(error.value)


def test_a_header_without_tensors_and_one_with_other_alignment_are_read(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(header(version=2))
    assert read(path).tensors == {}
    path.write_bytes(header([value("general.alignment", 4, struct.pack(U32, 8))], [entry(shape=(8,), offset=8)]))
    assert read(path).tensors["a"].nbytes == 32


def test_a_file_cut_anywhere_is_rejected(tmp_path, path):
    data = path.read_bytes()
    end = min(stored.offset for stored in read(path).tensors.values())
    cut = tmp_path / "cut.gguf"
    some = random.Random(0).sample(range(end), 150)
    for length in (*range(40), *some, end, end + 1, len(data) - 40):
        cut.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="cut.gguf"):
            read(cut)


def test_random_changes_to_a_header_take_little_work_and_memory_and_raise_only_errors_that_name_the_file(
    tmp_path, path
):
    """Huge values in random places are read as counts, lengths, types and offsets."""
    found = read(path)
    end = min(stored.offset for stored in found.tensors.values())
    data, changed, rng = bytearray(path.read_bytes()), tmp_path / "changed.gguf", random.Random(1)
    tracemalloc.start()
    rejected = 0
    with bounded():
        for _ in range(150):
            copy = bytearray(data)
            for _ in range(rng.randint(1, 3)):
                width = rng.choice((1, 4, 8))
                at = rng.randrange(end - width)
                copy[at : at + width] = rng.choice((b"\xff" * width, bytes(width), rng.randbytes(width)))
            changed.write_bytes(copy)
            try:
                read(changed)
            except CheckpointError as error:
                rejected += 1
                assert "changed.gguf" in str(error) and len(str(error)) < 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rejected > 50 and peak < 32 * len(data)


def test_a_header_of_many_strings_stops_at_the_limit(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(header([value("k", 9, struct.pack("<IQ", 8, 1000) + string("x" * 20) * 1000)]))
    with pytest.raises(CheckpointError, match="the header is larger than 0.0097"):
        read(path, header_limit=10_240)


def test_a_directory_and_a_missing_file_are_rejected(tmp_path):
    for path in (tmp_path, tmp_path / "missing.gguf"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read(path)
