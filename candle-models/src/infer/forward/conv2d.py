def conv2d(x, weight, bias, strides, pads):
    """x [B, C, H, W], weight [O, C, K, L]."""
    x = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[0]), (pads[1], pads[1])])
    patches = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))[:, :, :: strides[0], :: strides[1]]
    return np.einsum("bchwkl,ockl->bohw", patches, weight) + np.reshape(bias, (-1, 1, 1))
