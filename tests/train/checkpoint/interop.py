"""Treadle's safetensors files against the `safetensors` package of Python, both ways.

Run by interop_test.cc as: interop.py PROGRAM FOLDER. PROGRAM is interop_program, FOLDER an empty folder.
Exits 0 and prints "interop: ok", or ends with the assertion that failed.
"""

import json
import pathlib
import subprocess
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

NAMES = {  # of torch's types, as C++ prints them
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.uint16: "UInt16",
    torch.int32: "Int",
    torch.uint32: "UInt32",
    torch.int64: "Long",
    torch.uint64: "UInt64",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex64: "ComplexFloat",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2: "Float8_e5m2",
    torch.float8_e4m3fnuz: "Float8_e4m3fnuz",
    torch.float8_e5m2fnuz: "Float8_e5m2fnuz",
}
SHAPES = [(), (0,), (7,), (2, 0, 3), (2, 3, 4)]
METADATA = {"format": "pt", "größe": 'ü "quoted"\n'}


def make(dtype, shape):
    """Small numbers that every type holds exactly, in an order that a wrong shape or stride would show."""
    count = torch.Size(shape).numel()
    numbers = torch.arange(count, dtype=torch.float32) % 9
    if dtype == torch.bool:
        numbers = numbers % 2
    if dtype.is_floating_point:
        numbers = (numbers - 4) / 2
    made = torch.complex(numbers, -numbers) if dtype.is_complex else numbers
    return made.to(dtype).reshape(shape)


def values(tensor):
    """As interop_program's valuesOf()."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype.is_floating_point:
        tensor = tensor.to(torch.float64)
    return [int(v) if isinstance(v, bool) else v for v in tensor.reshape(-1).tolist()]


def check_described(text, tensors):
    described = json.loads(text)
    assert described["metadata"] == METADATA, described["metadata"]
    assert described["tensors"].keys() == tensors.keys()
    for name, tensor in tensors.items():
        seen = described["tensors"][name]
        assert seen["dtype"].removeprefix("c10::") == NAMES[tensor.dtype], (name, seen["dtype"])
        assert seen["shape"] == list(tensor.shape), (name, seen["shape"])
        assert seen["values"] == values(tensor), (name, seen["values"], values(tensor))


def check_same(path, tensors):
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape, name
        assert bytes(loaded[name].contiguous().reshape(-1).view(torch.uint8).tolist()) == bytes(
            tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
        ), name
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata() == METADATA, opened.metadata()


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    tensors = {
        f'{name}{list(shape)} "ä"': make(dtype, shape) for dtype, name in NAMES.items() for shape in SHAPES
    }
    theirs, ours = folder / "python.safetensors", folder / "treadle.safetensors"
    save_file(tensors, theirs, metadata=METADATA)
    described = subprocess.run([program, "describe", theirs], check=True, capture_output=True, timeout=60)
    check_described(described.stdout, tensors)
    subprocess.run([program, "copy", theirs, ours], check=True, timeout=60)
    check_same(ours, tensors)
    print(f"interop: ok, {len(tensors)} tensors of {len(NAMES)} types")


if __name__ == "__main__":
    main()
