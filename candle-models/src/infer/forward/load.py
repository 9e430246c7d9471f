def load(path):
    """The tensors of a safetensors file by name; weights of 8 bits times their factors, everything that is no index in float32."""
    data = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header, tensors = json.loads(data[8:start]), {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        raw, kind = data[start + begin : start + end], about["dtype"]
        if kind == "BF16":  # the upper half of a float32
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2", "I8": "i1", "U32": "<u4"}[kind])
        tensors[name] = (values if kind == "U32" else values.astype(np.float32)).reshape(about["shape"])
    for name in [name for name in tensors if f"{name}.scale" in tensors]:
        tensors[name] = tensors[name] * tensors.pop(f"{name}.scale")
    return tensors
