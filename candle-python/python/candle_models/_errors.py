"""What can go wrong. Every text is one line and says what was expected and what was found."""


class CandleError(Exception):
    """An error of the library."""


class FileError(CandleError, OSError):
    """A file or directory cannot be read."""


class BundleError(CandleError, ValueError):
    """A file was read, and does not hold what it should."""


class InputError(CandleError, ValueError):
    """An input, a state or an option that the model or the engine does not take. The state is the one before the call."""


class DeadlineExceeded(CandleError, TimeoutError):
    """The deadline was over before the step began. The state is the one before the step."""


class CapacityError(CandleError, RuntimeError):
    """Every session of the engine is open."""


class OverloadedError(CandleError, RuntimeError):
    """As many requests wait as the engine's queue takes. The state is the one before the step."""


class BusyError(CandleError, RuntimeError):
    """The session or runner is at work in another call, of another thread or task."""


class ClosedError(CandleError, RuntimeError):
    """The engine or the session is closed."""


class ModelError(CandleError, RuntimeError):
    """The model failed. The state of the session is lost: it has to be reset or restored."""


class StateLostError(CandleError, RuntimeError):
    """An earlier step failed: the session has to be reset or restored first."""
