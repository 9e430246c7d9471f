"""Beam alignment judged by another program: NumPy draws channels by path, and finds from the paths what the beams gain that `candle-infer` decided on."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np
from support import ROOT, write_safetensors

CHANNELS, PATHS, RECEIVE, TRANSMIT = 300, 3, 16, 32


def waves(azimuths, antennas):
    """Responses of a line of antennas half a wavelength apart: angles [...] to [..., antennas]."""
    return np.exp(1j * np.pi * np.sin(azimuths)[..., None] * np.arange(antennas))


def parts(values):
    """Complex [...] to [..., 2] in f32."""
    return np.stack([values.real, values.imag], -1).astype(np.float32)


def beams(rows, name):
    """The beams [CHANNELS, antennas] of the lines that the command wrote."""
    values = np.array([row[name] for row in rows], dtype=np.float64).reshape(len(rows), -1, 2)
    return values[..., 0] + 1j * values[..., 1]


class OtherGenerator(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.command = os.environ.get("CANDLE_INFER")
        if cls.command is None:
            raise unittest.SkipTest("CANDLE_INFER names no candle-infer")
        rng = np.random.default_rng(26)
        angles = rng.uniform(-np.pi / 2, np.pi / 2, (2, CHANNELS, PATHS))
        cls.gains = rng.standard_normal((2, CHANNELS, PATHS)).T @ [1, 1j] / np.sqrt(2)
        cls.gains = cls.gains.T
        cls.arrivals, cls.departures = waves(angles[0], RECEIVE), waves(angles[1], TRANSMIT)

    def run_command(self, bundle):
        matrices = np.einsum("bl,bln,blm->bnm", self.gains, self.arrivals, self.departures.conj())
        with tempfile.TemporaryDirectory() as folder:
            channels, out = Path(folder, "channels.safetensors"), Path(folder, "beams.jsonl")
            write_safetensors(channels, {"channels": parts(matrices)[:, None]})
            subprocess.run([self.command, "run", ROOT / "weights" / bundle, channels, "--out", out], check=True, capture_output=True)
            return [json.loads(line) for line in out.read_text().splitlines()]

    def test_gains_are_those_of_the_paths(self):
        # The least mean gain in dB is two standard errors below what the page of the controllers has.
        for bundle, least in [("beam-c3", 27.0), ("beam-c2", 26.8), ("beam-c1", 19.6)]:
            with self.subTest(bundle):
                rows = self.run_command(bundle)
                self.assertEqual(len(rows), CHANNELS)
                receive, transmit = beams(rows, "receive"), beams(rows, "transmit")
                for beam in [receive, transmit]:
                    np.testing.assert_allclose(np.linalg.norm(beam, axis=1), 1, atol=1e-4)
                heard = np.einsum("bn,bln->bl", receive.conj(), self.arrivals)
                sent = np.einsum("blm,bm->bl", self.departures.conj(), transmit)
                gains = abs(np.sum(self.gains * heard * sent, axis=1)) ** 2
                np.testing.assert_allclose(10 * np.log10(gains), [row["gain_db"] for row in rows], atol=2e-3)
                self.assertGreater(np.mean(10 * np.log10(gains)), least)


if __name__ == "__main__":
    unittest.main()
