#!/usr/bin/env python3
"""Compiles every CUDA kernel of ours with NVRTC for the supported architectures, on a machine without a GPU.

    CUDA_HOME=DIR scripts/cuda-kernels.py [--cache DIR] [--spill BYTES] [--architectures LIST] [FILE.cu ...]

The text of a kernel file is put together as at run time (candle-models/src/cuda): `common.cuh` comes
first. A compiler warning is an error, and so are register spills of more than BYTES (loads and stores together). Prints
what each kernel takes. Results are kept in the cache by the hash of text, options and compiler, so that an unchanged
file costs nothing.
"""

import argparse
import ctypes
import glob
import hashlib
import json
import multiprocessing
import os
import pathlib
import re
import sys

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90")
# As in candle-models/src/cuda/compiler.rs, but to machine code, for only the assembler knows registers and spills.
OPTIONS = ("--std=c++17", "-default-device", "--ptxas-options=-v")
ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMON = ROOT / "candle-models/src/ops/cuda/common.cuh"
COLUMNS = ("file", "kernel", "arch", "registers", "shared", "stack", "spilled")


def library():
    home = os.environ.get("CUDA_HOME")
    if not home:
        sys.exit("CUDA_HOME is not set (scripts/cuda-toolkit.sh makes a toolkit)")
    # NVRTC opens its built-in headers by name, which works once they are loaded.
    for name in glob.glob(f"{home}/lib/libnvrtc-builtins.so.*"):
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    found = glob.glob(f"{home}/lib/libnvrtc.so.*")
    if not found:
        sys.exit(f"{home}/lib: no libnvrtc.so there")
    return ctypes.CDLL(found[0])


def version(nvrtc):
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_to_log(name, text, architecture):
    """Whether it compiled, and what compiler and assembler said."""
    nvrtc, program, size = library(), ctypes.c_void_p(), ctypes.c_size_t()
    options = [f"--gpu-architecture={architecture}".encode(), *(o.encode() for o in OPTIONS)]
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None) != 0:
        return False, "NVRTC could not make a program"
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status == 0, log.value.decode()


def kernels(log):
    """Per kernel: registers, shared memory, stack, spilled bytes."""
    found, name = {}, None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '([^']+)'", line):
            name = match[1]
            found[name] = {"registers": 0, "shared": 0, "stack": 0, "spilled": 0}
        elif name and (match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            found[name] |= {"stack": int(match[1]), "spilled": int(match[2]) + int(match[3])}
        elif name and (match := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            found[name] |= {"registers": int(match[1]), "shared": int(shared[1]) if shared else 0}
    return found


def check(job):
    path, text, architecture, cache, key = job
    kept = cache / f"{key}.json"
    if kept.exists():
        try:
            return job, json.loads(kept.read_text())
        except ValueError:
            pass  # cut short: compile again
    compiled, log = compile_to_log(path.name, text, architecture)
    # What the assembler says is no warning, apart from those it calls so.
    said = "\n".join(line for line in log.splitlines() if not line.startswith(("ptxas info", "ptxas         .")))
    clean = compiled and "warning" not in said.lower()
    result = {"error": None if clean else said.strip() or "failed without a word", "kernels": kernels(log)}
    if clean and not result["kernels"]:
        result["error"] = "no kernel in it"
    if result["error"] is None:
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(result))
        part.replace(kept)
    return job, result


def jobs(files, architectures, cache, compiler):
    for path in files:
        text = COMMON.read_text() + path.read_text()
        for architecture in architectures:
            key = hashlib.sha256("\0".join([compiler, architecture, *OPTIONS, text]).encode()).hexdigest()
            yield path, text, architecture, cache, key


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "cuda-kernels")
    arguments.add_argument("--spill", type=int, default=64, help="bytes of register spills that a kernel may have (default 64)")
    arguments.add_argument("--architectures", type=lambda text: text.split(","), default=ARCHITECTURES, help=f"default {','.join(ARCHITECTURES)}")
    arguments.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = arguments.parse_args()
    files = arguments.files or sorted(path for crate in ("candle-models", "candle-train") for path in (ROOT / crate / "src").rglob("*.cu"))
    if not files:
        sys.exit("no kernel file below candle-models/src and candle-train/src")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    compiler, failures, rows = version(library()), [], []
    with multiprocessing.Pool() as pool:
        for (path, _, architecture, _, _), result in pool.imap(check, jobs(files, arguments.architectures, arguments.cache, compiler)):
            if result["error"] is not None:
                failures.append(f"{path} for {architecture}:\n{result['error']}")
            for kernel, found in result["kernels"].items():
                rows.append([path.name, kernel, architecture, *(str(found[c]) for c in COLUMNS[3:])])
                if found["spilled"] > arguments.spill:
                    failures.append(f"{path} for {architecture}: {kernel} spills {found['spilled']} bytes, at most {arguments.spill} are allowed")
    widths = [max(len(row[i]) for row in [COLUMNS, *rows]) for i in range(len(COLUMNS))]
    for row in [COLUMNS, *rows]:
        print("  ".join(cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))))
    print(f"{len(files)} files, {len(rows)} kernels by architecture, NVRTC {compiler}; bytes of shared memory, stack and spills")
    if failures:
        sys.exit("error: " + "\nerror: ".join(failures))


if __name__ == "__main__":
    main()
