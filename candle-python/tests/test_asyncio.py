"""Steps of sessions in asyncio loops."""

import asyncio
import unittest

from support import answers, assert_same, bundle, draw, fill

import candle_models

AGENTS, FRAMES = 24, 4


class Loop(unittest.TestCase):
    def test_many_agents_answer_as_one_after_the_other(self):
        values = draw((FRAMES, AGENTS), seed=1)

        async def agent(engine, row):
            session, found = engine.session(), []
            for frame in range(FRAMES):
                fill(session.inputs, values, (frame, row))
                await session.step_async()
                found.append(answers(session))
            return found

        async def all_agents(engine):
            return await asyncio.gather(*(agent(engine, row) for row in range(AGENTS)))

        with bundle().engine(max_batch=8) as engine:
            found = asyncio.run(all_agents(engine))
            self.assertEqual(engine.stats.steps, AGENTS * FRAMES)
            # Another loop in the same process listens anew.
            found_again = asyncio.run(all_agents(engine))
        with bundle().engine() as engine:
            for row in range(AGENTS):
                with engine.session() as session:
                    for frame in range(FRAMES):
                        fill(session.inputs, values, (frame, row))
                        session.step()
                        assert_same(found[row][frame], answers(session))
                        assert_same(found_again[row][frame], answers(session))

    def test_errors_come_out_of_the_await(self):
        async def run(engine):
            session = engine.session()
            with self.assertRaisesRegex(candle_models.InputError, "^tensor features: expected to be set"):
                await session.step_async()
            fill(session.inputs, draw((), seed=2))
            with self.assertRaisesRegex(candle_models.DeadlineExceeded, "^the deadline was over before the step began$"):
                await session.step_async(deadline=0)
            await session.step_async(deadline=3600)
            self.assertEqual(session.frames, 1)
            engine.close()
            with self.assertRaisesRegex(candle_models.ClosedError, "^the engine is closed$"):
                await session.step_async()

        asyncio.run(run(bundle().engine()))

    def test_a_cancelled_step_is_not_made(self):
        values = draw((2,), seed=3)

        async def run(engine):
            # The engine holds a request back until the other session has one too.
            one, other = engine.session(), engine.session()
            fill(one.inputs, values, 0)
            fill(other.inputs, values, 0)
            step = asyncio.create_task(one.step_async())
            await asyncio.sleep(0)
            with self.assertRaisesRegex(candle_models.BusyError, "^the session is at work in another call$"):
                one.step()
            with self.assertRaises(candle_models.BusyError):
                await one.step_async()
            step.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await step
            self.assertEqual((one.frames, engine.stats.cancelled), (0, 1))
            await asyncio.gather(one.step_async(), other.step_async())
            self.assertEqual((one.frames, engine.stats.batch_sizes[1]), (1, 1))
            assert_same(one.outputs, answers(other))

        with bundle().engine(sessions=2, max_batch=2, max_wait=1.0) as engine:
            asyncio.run(run(engine))

    def test_nobody_computes_in_the_memory_of_a_cancelled_step(self):
        rounds = 100
        values = draw((rounds,), seed=4)

        async def run(engine):
            session, other = engine.session(), engine.session()
            fill(other.inputs, values, 0)
            for frame in range(rounds):
                fill(session.inputs, values, frame)
                step = asyncio.create_task(session.step_async())
                # Some steps wait still, some are being computed, some are over.
                for _ in range(1 + frame % 16):
                    await asyncio.sleep(0)
                step.cancel()
                try:
                    await step
                except asyncio.CancelledError:
                    pass
                after = answers(session)
                # The engine runs this batch behind the one that the cancelled step may have been in.
                other.step()
                assert_same(session.outputs, after)
            self.assertEqual(session.frames + other.frames, engine.stats.steps)

        with bundle().engine() as engine:
            asyncio.run(run(engine))


if __name__ == "__main__":
    unittest.main()
