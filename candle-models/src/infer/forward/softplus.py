def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
