def erf(x):
    return np.vectorize(math.erf, otypes=[np.float32])(x)
