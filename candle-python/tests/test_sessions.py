"""Sessions and runners."""

import gc
import math
import os
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np
from support import MAMBA, ROOT, answers, assert_same, bundle, draw, fill, read_safetensors, write_safetensors

import candle_models

FRAMES = 4


class Answers(unittest.TestCase):
    def test_sessions_answer_as_the_rows_of_a_runner(self):
        values = draw((FRAMES, 3), seed=1)
        runner = bundle().runner(3)
        with bundle().engine() as engine:
            sessions = [engine.session() for _ in range(3)]
            for frame in range(FRAMES):
                fill(runner.inputs, values, frame)
                runner.step([row == 1 and frame == 2 for row in range(3)])
                sessions[1].reset() if frame == 2 else None
                for row, session in enumerate(sessions):
                    fill(session.inputs, values, (frame, row))
                    session.step()
                    assert_same(session.outputs, {name: output[row] for name, output in runner.outputs.items()})
            self.assertEqual([session.frames for session in sessions], [FRAMES, 2, FRAMES])

    def test_a_window_answers_as_its_frames(self):
        values = draw((2, FRAMES), seed=2)
        window, stream = bundle().runner(2, FRAMES), bundle().runner(2)
        fill(window.inputs, values)
        reset = np.zeros((2, FRAMES), dtype=bool)
        reset[1, 3] = True
        window.step(reset.ravel())
        for frame in range(FRAMES):
            fill(stream.inputs, values, (slice(None), frame))
            stream.step(reset[:, frame])
            assert_same(stream.outputs, {name: output[:, frame] for name, output in window.outputs.items()})
        assert_same(stream.save(), window.save())

    def test_the_command_answers_the_same(self):
        command = os.environ.get("CANDLE_INFER")
        if command is None:
            self.skipTest("CANDLE_INFER names no candle-infer")
        values = {name: value.astype(spec_dtype(name)) for name, value in draw((2, FRAMES), seed=3).items()}
        window = bundle().runner(2, FRAMES)
        fill(window.inputs, values)
        window.step()
        with tempfile.TemporaryDirectory() as folder:
            inputs, outputs = Path(folder, "in.safetensors"), Path(folder, "out.safetensors")
            write_safetensors(inputs, values)
            subprocess.run([command, "run", MAMBA, inputs, "--out", outputs], check=True, capture_output=True, cwd=ROOT)
            assert_same(window.outputs, read_safetensors(outputs))

    def test_a_state_goes_back_and_into_a_row(self):
        values = draw((FRAMES,), seed=4)
        with bundle().engine() as engine, engine.session() as session:
            fill(session.inputs, values, 0)
            session.step()
            state = session.save()
            self.assertEqual({name: array.shape for name, array in state.items()}, shapes(1))
            fill(session.inputs, values, 1)
            session.step()
            expected = answers(session)
            session.restore(state)
            self.assertEqual(session.frames, 0)
            session.step()
            assert_same(session.outputs, expected)
            runner = bundle().runner(2)
            rows = runner.save()
            self.assertEqual({name: array.shape for name, array in rows.items()}, shapes(2))
            for name, array in rows.items():
                array[1] = state[name][0]
            runner.restore(rows)
            fill(runner.inputs, values, 1)
            runner.step()
            assert_same({name: output[1] for name, output in runner.outputs.items()}, expected)
            self.assertFalse(np.allclose(runner.outputs["logits"][0], runner.outputs["logits"][1]), "row 0 began anew")

    def test_a_fork_goes_its_own_way(self):
        values = draw((FRAMES,), seed=5)
        with bundle().engine(sessions=2) as engine, engine.session() as session:
            fill(session.inputs, values, 0)
            session.step()
            with session.fork() as fork:
                np.testing.assert_array_equal(fork.inputs["features"], session.inputs["features"])
                for each in [session, fork]:
                    fill(each.inputs, values, 1)
                    each.step()
                assert_same(fork.outputs, answers(session))
                fill(fork.inputs, values, 2)
                fork.step()
                self.assertEqual((session.frames, fork.frames), (2, 3))
                self.assertFalse(np.allclose(fork.outputs["logits"], session.outputs["logits"]))

    def test_a_network_is_chosen_by_name(self):
        path = ROOT / "weights" / "beam-c3"
        first, second = candle_models.Bundle(path), candle_models.Bundle(path, "decision")
        self.assertEqual(first.networks[:2], ("user", "decision"))
        self.assertEqual([spec.name for spec in second.signature.inputs][:2], ["measurements", "state"])
        self.assertEqual((first.family, first.config["scheme"]), ("beam", "c3"))


class Views(unittest.TestCase):
    def test_inputs_and_outputs_are_the_sessions_own_memory(self):
        values = draw((1,), seed=6)
        with bundle().engine() as engine, engine.session() as session:
            features = session.inputs["features"]
            self.assertEqual((features.dtype, features.flags.owndata), (np.float32, False))
            self.assertTrue(np.shares_memory(features, session.inputs["features"]))
            fill(session.inputs, values, 0)
            session.step()
            before = answers(session)
            logits = session.outputs["logits"]
            session.reset()
            features += 1
            session.step()
            self.assertTrue(np.shares_memory(logits, session.outputs["logits"]))
            self.assertFalse(np.allclose(logits, before["logits"]), "the array that was held is the step's output")
            with self.assertRaisesRegex(ValueError, "read-only"):
                logits[0] = 1

    def test_the_rows_of_a_runner_are_its_own_memory(self):
        runner = bundle().runner(3)
        features = runner.inputs["features"]
        self.assertEqual(features.shape, (3, *spec("features").shape))
        self.assertTrue(np.shares_memory(features[2], runner.inputs["features"]))
        self.assertFalse(np.shares_memory(features[1], features[2]))
        self.assertFalse(runner.outputs["value"].flags.writeable)

    def test_arrays_keep_a_session_and_its_engine(self):
        engine = bundle().engine(sessions=1)
        session = engine.session()
        features, logits = session.inputs["features"], session.outputs["logits"]
        session.close()
        with self.assertRaisesRegex(candle_models.ClosedError, "^the session is closed$"):
            session.step()
        with self.assertRaises(candle_models.CapacityError):
            engine.session()
        features[:] = 7
        self.assertTrue((features == 7).all() and (logits == 0).all())
        del features, logits
        gc.collect()
        other = engine.session()
        self.assertTrue(np.isnan(other.inputs["features"]).all(), "the row has been cleared for its new session")
        kept = other.inputs["features"]
        del other, session, engine
        gc.collect()
        kept[:] = 3
        self.assertEqual(kept.sum(), 3 * kept.size)

    def test_arrays_keep_a_runner(self):
        features = bundle().runner(2).inputs["features"]
        gc.collect()
        features[:] = 5
        self.assertEqual(features.sum(), 5 * features.size)

    def test_the_signature_tells_what_the_arrays_are(self):
        with bundle().engine() as engine, engine.session() as session:
            signature = session.signature
            for specs, arrays in [(signature.inputs, session.inputs), (signature.outputs, session.outputs)]:
                self.assertEqual([(s.name, s.dtype, s.shape) for s in specs], [(n, a.dtype, a.shape) for n, a in arrays.items()])
            for each in signature.inputs:
                if not each.required:
                    np.testing.assert_array_equal(session.inputs[each.name], each.default)
            self.assertEqual([each.name for each in signature.inputs if each.required], ["features", "ids"])
            self.assertEqual(spec("uniform").within, (-1.0, 1.0))
            self.assertEqual(len(spec("ids").below), math.prod(spec("ids").shape))
            self.assertTrue(spec("action").can_sample and (spec("action").default == candle_models.SAMPLE).all())


class Refusals(unittest.TestCase):
    def refused(self, kind, text, call, *arguments, **options):
        with self.assertRaises(candle_models.CandleError) as caught:
            call(*arguments, **options)
        self.assertIs(type(caught.exception), kind)
        self.assertRegex(str(caught.exception), text)
        return caught.exception

    def test_bundles_and_options(self):
        error = self.refused(candle_models.FileError, r"^/no/bundle: No such file", candle_models.open, "/no/bundle")
        self.assertIsInstance(error, OSError)
        error = self.refused(candle_models.BundleError, "expected a model directory", candle_models.open, __file__)
        self.assertIsInstance(error, ValueError)
        missing = "^network: expected one of .policy., found other$"
        self.refused(candle_models.InputError, missing, candle_models.open, MAMBA, "other")
        for name, options in {"threads": {"threads": 0}, "sessions": {"sessions": 0}, "max_wait": {"max_wait": 2.0}}.items():
            self.refused(candle_models.InputError, f"^config: {name}: expected", bundle().engine, **options)
        self.refused(candle_models.InputError, "^max_wait: expected seconds from 0 on, found -1$", bundle().engine, max_wait=-1)
        self.refused(candle_models.InputError, "^a runner of 0 rows and 1 frames runs nothing$", bundle().runner, 0)

    def test_inputs(self):
        with bundle().engine() as engine, engine.session() as session:
            unset = "^tensor features: expected to be set before the first pass: it has no default, found nothing$"
            self.assertIsInstance(self.refused(candle_models.InputError, unset, session.step), ValueError)
            fill(session.inputs, draw((), seed=7))
            session.inputs["ids"][0] = 100_000
            self.refused(candle_models.InputError, "^tensor ids: expected an index up to 398, found 100000 in column 0$", session.step)
            fill(session.inputs, draw((), seed=7))
            session.inputs["features"][3] = np.nan
            self.refused(candle_models.InputError, "^tensor features: expected finite numbers, found NaN in column 3$", session.step)
            self.refused(candle_models.InputError, "^deadline: expected seconds from 0 on, found NaN$", session.step, deadline=math.nan)
            with self.assertRaises(KeyError):
                session.inputs["other"]
        self.refused(candle_models.InputError, "^1 resets for 2 rows$", bundle().runner(2).step, [True])

    def test_states(self):
        with bundle().engine() as engine, engine.session() as session:
            fill(session.inputs, draw((), seed=8))
            session.step()
            state = session.save()
            name, array = next(iter(state.items()))
            wide = {**state, name: array.astype(np.float64)}
            self.refused(candle_models.InputError, f"^tensor {name}: expected an array of float32 or uint32, found float64$", session.restore, wide)
            self.refused(candle_models.InputError, f"^tensor {name}: expected F32 ", session.restore, {**state, name: array[0]})
            self.refused(candle_models.InputError, f"^tensor {name}: expected finite", session.restore, {**state, name: array + np.inf})
            self.refused(candle_models.InputError, "^tensor more: expected no such tensor", session.restore, {**state, "more": array})
            self.refused(candle_models.InputError, "to be present", session.restore, {})
            self.refused(candle_models.InputError, f"^tensor {name}: expected F32 ", bundle().runner(2).restore, state)
            assert_same(session.save(), state)
            self.assertEqual(session.frames, 1)

    def test_a_deadline_that_is_over_leaves_the_state(self):
        with bundle().engine() as engine, engine.session() as session:
            fill(session.inputs, draw((), seed=9))
            session.step()
            state = session.save()
            error = self.refused(candle_models.DeadlineExceeded, "^the deadline was over before the step began$", session.step, deadline=0)
            self.assertIsInstance(error, TimeoutError)
            self.refused(candle_models.DeadlineExceeded, "over before the step began$", session.step, deadline=-0.5)
            assert_same(session.save(), state)
            self.assertEqual((session.frames, engine.stats.expired), (1, 2))
            session.step(deadline=math.inf)
            session.step(deadline=3600)
            self.assertEqual((session.frames, engine.stats.steps, engine.stats.lone.count), (3, 3, 3))

    def test_capacity_and_closing(self):
        with bundle().engine(sessions=1) as engine, engine.session() as session:
            error = self.refused(candle_models.CapacityError, "^all 1 sessions of the engine are open$", engine.session)
            self.assertIsInstance(error, RuntimeError)
            self.refused(candle_models.CapacityError, "^all 1 sessions", session.fork)
            fill(session.inputs, draw((), seed=10))
            session.step()
            engine.close()
            for call in [session.step, engine.session]:
                self.refused(candle_models.ClosedError, "^the engine is closed$", call)
            self.assertEqual((session.frames, engine.stats.open), (1, 1))


class Threads(unittest.TestCase):
    def test_the_interpreter_goes_on_while_a_step_waits(self):
        # The engine holds back the request of one of two sessions until the other has made its own, which it cannot do while the first
        # keeps the interpreter. Where a machine lets a second pass between the two, the pair is made again.
        with bundle().engine(sessions=2, max_batch=2, max_wait=1.0) as engine:
            sessions = [engine.session(), engine.session()]
            for session in sessions:
                fill(session.inputs, draw((), seed=11))
            for _ in range(20):
                threads = [threading.Thread(target=session.step) for session in sessions]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                if engine.stats.batch_sizes[1]:
                    break
            self.assertGreater(engine.stats.batch_sizes[1], 0)
            assert_same(sessions[0].outputs, answers(sessions[1]))


def spec(name: str) -> candle_models.TensorSpec:
    return next(spec for spec in bundle().signature.inputs if spec.name == name)


def spec_dtype(name: str) -> np.dtype:
    return spec(name).dtype


def shapes(rows: int) -> dict[str, tuple[int, ...]]:
    return {spec.name: (rows, *spec.shape) for spec in bundle().signature.states}


if __name__ == "__main__":
    unittest.main()
