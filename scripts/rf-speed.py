#!/usr/bin/env python3
"""How long NumPy and SciPy take for a second of IQ at 200 kHz and its features, and whether the features are those of candle-models.

    cargo run --release -p candle-models --example rf_speed -- iq.f32 > features.txt
    python3 scripts/rf-speed.py iq.f32 features.txt

The definitions are those of the published generator and extractor, but for the autocorrelation, which is taken by Fourier transforms (by its
definition it takes seconds). Times are the median of runs and, in brackets, the best.
"""

import sys
import time

import numpy as np

RATE, SAMPLES, CHUNK, EPS = 200_000, 200_000, 40_000, 1e-12


def generate(rng):
    t = np.arange(SAMPLES) / RATE
    theta = np.convolve(rng.normal(0, 0.3, SAMPLES), np.ones(10) / 10, mode="same")
    clean = np.exp(1j * (2 * np.pi * 37.5 * t + theta))
    signal = clean.copy()
    for _ in range(rng.integers(2, 4)):
        delay = max(1, int(rng.uniform(0.5e-6, 5e-6) * RATE))
        gain = 10 ** (rng.uniform(-25, -10) / 20) * np.exp(1j * rng.uniform(0, 2 * np.pi))
        echo = np.zeros_like(clean)
        echo[delay:] = clean[:-delay]
        signal += gain * echo
    held = int(rng.uniform(0.05, 0.2) * RATE)
    amplitude = np.hypot(*rng.normal(0, 1, (2, max(1, SAMPLES // held))))
    amplitude = np.repeat(amplitude, held)[:SAMPLES]
    signal *= np.pad(amplitude, (0, SAMPLES - len(amplitude)), mode="edge")
    signal *= np.sqrt(1e-10 / np.mean(np.abs(signal) ** 2))
    deviation = np.sqrt(np.mean(np.abs(signal) ** 2) / 10**1.5 / 2)
    return (signal + rng.normal(0, deviation, SAMPLES) + 1j * rng.normal(0, deviation, SAMPLES)).astype(np.complex64)


def features(x):
    n = len(x)
    power = np.mean(np.abs(x) ** 2)
    psd = np.abs(np.fft.fftshift(np.fft.fft(x))) ** 2 / n
    freqs = np.fft.fftshift(np.fft.fftfreq(n, 1 / RATE))
    floor = np.median(np.sort(psd)[: max(1, int(0.3 * n))])
    snr = 10 * np.log10(power / (floor + EPS))
    envelope = np.abs(x)
    relative = envelope / (envelope.max() + EPS)
    spectrum = np.fft.fft(x, 2 * n)
    pdp = np.abs(np.fft.ifft(np.abs(spectrum) ** 2)[:n]) ** 2
    pdp = pdp / (pdp.max() + EPS)
    lags = np.where(pdp > 0.1)[0]
    spread = coherence = confidence = 0.0
    if len(lags) > 1:
        delays = lags / RATE
        mean = np.average(delays, weights=pdp[lags])
        spread = np.sqrt(np.average((delays - mean) ** 2, weights=pdp[lags]))
        coherence = 1 / (5 * spread + EPS) / 1000
        confidence = 1 if snr > 15 else 0.5 + (snr - 10) / 10 if snr > 10 else 0.3 + (snr - 5) / 10 if snr > 5 else max(0, snr / 15)
    total = np.cumsum(psd)
    return dict(
        rssi_dbm=10 * np.log10(power + EPS) + 30,
        snr_db=snr,
        noise_floor_dbm=10 * np.log10(floor + EPS) + 30,
        frequency_offset_hz=freqs[np.argmax(psd)],
        bandwidth_hz=np.sum(psd > psd.max() / 2) * RATE / n,
        psd_dbm_per_hz=10 * np.log10(psd.max() / RATE + EPS) + 30,
        spectral_centroid_hz=np.sum(freqs * psd) / (np.sum(psd) + EPS),
        spectral_rolloff_hz=freqs[np.where(total >= 0.85 * total[-1])[0][0]],
        envelope_mean=relative.mean(),
        envelope_std=relative.std(),
        envelope_max=relative.max(),
        peak_to_avg_ratio_db=10 * np.log10(np.max(np.abs(x) ** 2) / (power + EPS)),
        zero_crossing_rate=np.sum(np.diff(np.sign(x.real)) != 0) / n,
        multipath_delay_spread_us=spread * 1e6,
        coherence_bandwidth_khz=coherence,
        delay_spread_confidence=confidence,
        signal_present=float(snr > 0),
        confidence_score=np.clip(snr / 30, 0, 1),
    )


def measure(what, runs, run):
    run()
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begun))
    print(f"{what:<46} {np.median(times):>8.3f} ms [{min(times):.3f}]")


def main():
    rng = np.random.default_rng(1)
    measure("1 s of IQ, NumPy", 20, lambda: generate(rng))
    x = np.fromfile(sys.argv[1], np.complex64) if len(sys.argv) > 1 else generate(rng)
    chunks = x.reshape(-1, CHUNK)
    measure("5 x 18 features, NumPy", 20, lambda: [features(chunk) for chunk in chunks])
    if len(sys.argv) < 3:
        return
    lines = [line for line in open(sys.argv[2], encoding="utf-8") if line.startswith("rssi_dbm=")]
    assert len(lines) == len(chunks), f"{len(lines)} lines for {len(chunks)} chunks"
    worst = {}
    for line, chunk in zip(lines, chunks):
        # In double precision, from the same samples.
        expected = features(chunk.astype(np.complex128))
        for field in line.split():
            name, value = field.split("=")
            apart = abs(float(value) - expected[name]) / max(abs(expected[name]), 1e-6)
            worst[name] = max(worst.get(name, 0), apart)
    for name, apart in worst.items():
        print(f"{name:<30} {apart:.1e}")
    assert max(worst.values()) <= 1e-6, "features differ by more than 1e-6 of themselves"


if __name__ == "__main__":
    main()
