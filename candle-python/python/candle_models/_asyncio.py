"""Steps of sessions in an asyncio loop. No thread is held while one waits."""

import asyncio
import itertools
from weakref import WeakKeyDictionary

from ._native import Session, Wakeups


class _Listener:
    """What one loop waits for: a future for each step that is under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wakeups = Wakeups()
        self.tokens = itertools.count()
        self.waiting: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self.wakeups.fileno(), self.wake)

    def wake(self) -> None:
        for token in self.wakeups.take():
            future = self.waiting.pop(token, None)
            # A step that was cancelled has no future any more, or one that is done.
            if future is not None and not future.done():
                future.set_result(None)


_listeners: WeakKeyDictionary[asyncio.AbstractEventLoop, _Listener] = WeakKeyDictionary()


async def step(session: Session, deadline: float | None) -> None:
    """Makes one frame of a session."""
    loop = asyncio.get_running_loop()
    listener = _listeners.get(loop)
    if listener is None:
        listener = _listeners[loop] = _Listener(loop)
    token = next(listener.tokens)
    step = session._begin(listener.wakeups, token, deadline)
    try:
        while not step.poll():
            future = listener.waiting[token] = loop.create_future()
            await future
    finally:
        listener.waiting.pop(token, None)
        step.close()
