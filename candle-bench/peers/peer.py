#!/usr/bin/env python3
"""The Python side of `candle-bench peers`: one JSON request per line on stdin, one JSON answer per line on stdout.

    {"op": "hello"}                                    -> {"ok": {"pytorch": "...", "onnxruntime": "...", ...}}, null where missing
    {"op": "prepare", "library": "pytorch" | "pytorch-compile" | "pytorch-graphs" | "onnxruntime" | "openvino" | "jax",
     "device": "cpu" | "cuda:0", "dtype": "f32" | "bf16", "bundle": DIR, "onnx": FILE or null, "pass": "step" | "window" | "train" | "product",
     "batch": B, "frames": T, "threads": N, "inputs": FILE, "outputs": FILE}
                                                       -> {"ok": {}}
    {"op": "round", "calls": N}                        -> {"ok": {"latencies_us": [...], "seconds": S}}
    {"op": "peak"}                                     -> {"ok": peak of this process's resident set in KiB}

and {"error": "one line"} when a request fails, {"unavailable": "one line"} when a case cannot be had here: its library is not installed, has
no such pass, or computes on more threads than it may. `inputs` are safetensors `[B, frames, ...]` by name. A step takes them frame
by frame, round and round, with the state carried on; its outputs are those of the first round from the initial state.
A window or a training step takes them whole. A training step's output is `loss` [2], before and after the first update; that of an operator
(fno.py) also its gradients and parameters.
`onnx` is the network's step as candle-models exports it, for the libraries that run such a file.
On the CPU there are PyTorch, eager and compiled, ONNX Runtime, OpenVINO and JAX, in f32; on a GPU PyTorch in its three forms. A product has no inputs
and outputs: it multiplies two B x B matrices T times a call.
"""

import contextlib
import gc
import importlib
import json
import os
import pathlib
import sys
import time

try:
    import numpy
    import safetensors.numpy
except ImportError as missing:
    # The other side waits for an answer, and is to be told in one line.
    print(json.dumps({"error": f"{missing}; candle-bench/peers/setup.sh installs what is needed"}), flush=True)
    sys.exit(1)

from common import Unavailable, allow_cpus, config_of, require, version

WARM_UP_CALLS = 3  # of a round, not counted: the other side had the caches
# CPU time of a round from which on its threads are counted, in seconds.
COUNTED_S = 0.1
# By how much the threads' CPU time may exceed that of the busiest times their number: clocks are read one after the other.
COUNT_TOLERANCE = 1.1

# What a library needs, and the module of its passes by the kind of its device.
PACKAGES = {
    "pytorch": "torch",
    "pytorch-compile": "torch",
    "pytorch-graphs": "torch",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "jax": "jax",
}
MODULES = {
    ("pytorch", "cpu"): "pytorch",
    ("pytorch-compile", "cpu"): "pytorch",
    ("onnxruntime", "cpu"): "onnx_runtime",
    ("openvino", "cpu"): "openvino_step",
    ("jax", "cpu"): "jax_policy",
    ("pytorch", "cuda"): "cuda",
    ("pytorch-compile", "cuda"): "cuda",
    ("pytorch-graphs", "cuda"): "cuda",
}


# Families with passes of their own, in eager PyTorch on the CPU, and their modules. Those of the others are passes of policies.
FAMILIES = {"beam": "beam", "fno": "fno"}
# Libraries whose step is what candle-models exports, whatever its family.
EXPORTED = ("onnxruntime", "openvino")


def subject_of(case):
    """The class of a case's calls and what limits their threads."""
    library, wanted, device = case["library"], case["pass"], case["device"]
    if library not in PACKAGES:
        raise ValueError(f"no such library: {library}")
    of_any = wanted == "product" or (wanted == "step" and library in EXPORTED)
    family = None if of_any else FAMILIES.get(config_of(case["bundle"]).get("family"))
    name = MODULES.get((library, device.split(":")[0]))
    if name is None or (family and (library, device) != ("pytorch", "cpu")):
        raise Unavailable(f"{library} has no {wanted} pass{f' of family {family}' if family else ''} on {device} here")
    require(PACKAGES[library])
    module = importlib.import_module(name)
    kind = (importlib.import_module(family) if family else module).PASSES.get(wanted)
    if kind is None:
        raise Unavailable(f"{library} has no {wanted} pass{f' of family {family}' if family else ''} on {device} here")
    return kind, module.set_threads


def prepare(case):
    kind, set_threads = subject_of(case)
    allow_cpus()
    set_threads(case)
    subject = kind(case)
    outputs = {n: numpy.ascontiguousarray(a).astype(numpy.uint32 if a.dtype.kind == "i" else a.dtype) for n, a in subject.first_outputs().items()}
    # A product alone is compared with nothing.
    if case["outputs"]:
        safetensors.numpy.save_file(outputs, case["outputs"])
    return subject


def thread_seconds():
    """CPU time of every thread of this process so far."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            # The clock of another thread, as pthread_getcpuclockid names it: CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED.
            found[thread] = time.clock_gettime(~int(thread) << 3 | 6)
    return found


def check_threads(case, before, after):
    """That no more threads computed than the case allows. Whoever computes beside this process does not change the shares. A process that has
    no more CPUs than that cannot, however it divides its work."""
    if len(os.sched_getaffinity(0)) <= case["threads"]:
        return
    used = [seconds - before.get(thread, 0.0) for thread, seconds in after.items()]
    total, busiest = sum(used), max(used)
    if total >= COUNTED_S and total > COUNT_TOLERANCE * case["threads"] * busiest:
        raise Unavailable(f"{case['library']} computed on {total / busiest:.1f} threads, the case allows {case['threads']}")


def time_round(subject, calls):
    # A call of seconds needs no warm-up of its own, and would pay for it.
    for _ in range(min(WARM_UP_CALLS, calls - 1)):
        subject.call()
    clock, latencies = time.perf_counter_ns, []
    gc.collect()
    gc.disable()
    start = last = clock()
    for _ in range(calls):
        subject.call()
        now = clock()
        latencies.append((now - last) / 1e3)
        last = now
    gc.enable()
    return {"latencies_us": latencies, "seconds": (last - start) / 1e9}


def checked_round(case, subject, calls):
    if case["device"] != "cpu":
        return time_round(subject, calls)
    before = thread_seconds()
    timed = time_round(subject, calls)
    check_threads(case, before, thread_seconds())
    return timed


def answer(prepared, request):
    """The case and its subject from then on, and what to answer."""
    match request["op"]:
        case "hello":
            packages = {library: package for library, package in PACKAGES.items() if "-" not in library} | {"neuraloperator": "neuralop"}
            return prepared, {name: version(package) for name, package in packages.items()}
        case "prepare":
            prepared.clear()  # the old one's memory goes first
            return [request, prepare(request)], {}
        case "round":
            if not prepared:
                raise ValueError("a round needs a prepared subject")
            return prepared, checked_round(*prepared, request["calls"])
        case "peak":
            status = pathlib.Path("/proc/self/status").read_text()
            return prepared, int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))
        case op:
            raise ValueError(f"no such request: {op}")


def one_line(error):
    return " ".join(str(error).split())[:500]


def main():
    # A library that prints must not speak into the protocol, C++ code neither: descriptor 1 becomes the error stream.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Loaded from the start, so that the memory of this process before anything is prepared has it in.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch").set_num_interop_threads(1)
    prepared = []
    for line in sys.stdin:
        try:
            prepared, found = answer(prepared, json.loads(line))
            reply = {"ok": found}
        except Unavailable as reason:
            reply = {"unavailable": one_line(reason)}
        except Exception as error:  # whatever it is, the other side reports it and decides
            reply = {"error": f"{type(error).__name__}: {one_line(error)}"}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
