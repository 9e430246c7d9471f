"""Runs an ONNX step in ONNX Runtime over sequences, frame by frame: MODEL INPUTS OUTPUTS, both safetensors.

INPUTS holds the inputs [sequences, frames, ...] by name and `resets` [sequences, frames], OUTPUTS gets the outputs likewise.
"""

import json
import pathlib
import sys

import numpy as np
import onnxruntime


# load


def save(path, tensors):
    kinds, header, start = {"float32": "F32", "uint32": "U32"}, {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": kinds[values.dtype.name], "shape": values.shape, "data_offsets": [start, start + values.nbytes]}
        start += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    raw = b"".join(np.ascontiguousarray(values).tobytes() for values in tensors.values())
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + raw)


def wide(values):
    return values.astype(np.int64) if values.dtype == np.uint32 else values


def narrow(values):
    return values.astype(np.uint32) if values.dtype == np.int64 else values


def main(model, inputs, outputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    # By default the runtime rounds what products with 8-bit weights read to 8 bits; at level 1 it stays as it is.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = load(inputs)
    resets = inputs.pop("resets")
    sequences, frames = resets.shape
    shapes = {i.name: i.shape for i in session.get_inputs()}
    state = {name: np.zeros([sequences, *shape[1:]], np.float32) for name, shape in shapes.items() if name.startswith("state.")}
    names, seen = [output.name for output in session.get_outputs()], []
    for t in range(frames):
        keep = (resets[:, t] == 0).astype(np.float32)
        feed = {name: values * keep.reshape(-1, *[1] * (values.ndim - 1)) for name, values in state.items()}
        feed |= {name: wide(values[:, t]) for name, values in inputs.items() if name in shapes}
        answers = dict(zip(names, session.run(names, feed)))
        state = {name: answers["after." + name.removeprefix("state.")] for name in state}
        seen.append({name.removeprefix("output."): narrow(answers[name]) for name in names if name.startswith("output.")})
    save(outputs, {name: np.stack([frame[name] for frame in seen], 1) for name in seen[0]})
    print(f"ONNX Runtime {onnxruntime.__version__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
