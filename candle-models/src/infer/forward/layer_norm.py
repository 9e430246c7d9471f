def layer_norm(x, gain, offset, epsilon):
    apart = x - x.mean(-1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + epsilon) * gain + offset
