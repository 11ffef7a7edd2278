"""Reads the binary: it asks for no loader and no library, can be loaded anywhere, and is small."""

import struct
import sys

LARGEST = 4_500_000

# Of <elf.h>.
ET_DYN = 3
PT_DYNAMIC, PT_INTERP = 2, 3
DT_NEEDED = 1
SHT_SYMTAB = 2

with open(sys.argv[1], "rb") as file:
    image = file.read()


def table(offset, size, count, layout):
    """The entries of a table, each as the fields of `layout`."""
    return [struct.unpack_from(layout, image, offset + size * index) for index in range(count)]


assert image[:6] == b"\x7fELF\x02\x01", "no little-endian ELF file of 64 bits"
kind, *_ = struct.unpack_from("<H", image, 16)
program_offset, section_offset = struct.unpack_from("<QQ", image, 32)
program_size, programs, section_size, sections = struct.unpack_from("<HHHH", image, 54)

# Type, flags, offset, two addresses, size.
segments = table(program_offset, program_size, programs, "<IIQQQQ")
assert PT_INTERP not in [segment[0] for segment in segments], "it asks for a dynamic loader"
for segment in segments:
    if segment[0] == PT_DYNAMIC:
        tags = [tag for tag, _ in table(segment[2], 16, segment[5] // 16, "<QQ")]
        assert DT_NEEDED not in tags, "it asks for a shared library"
assert kind == ET_DYN, "it is always loaded at the same address"
# Name, type.
kinds = [kind for _, kind in table(section_offset, section_size, sections, "<II")]
assert SHT_SYMTAB not in kinds, "it is not stripped"
assert len(image) < LARGEST, f"{len(image)} bytes are not under {LARGEST}"
print(f"elf: static, position-independent, stripped, {len(image)} bytes")
