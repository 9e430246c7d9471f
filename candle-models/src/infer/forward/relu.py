def relu(x):
    return np.maximum(x, 0)
