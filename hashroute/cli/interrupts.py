"""Ctrl-C ends a command once and for all, also if a library swallows it or it is pressed again."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

AGAIN = 0.5
"""Seconds after which an interrupt that had no effect is raised again."""


class Interrupts:
    """While this context lasts, the first Ctrl-C raises KeyboardInterrupt until it reaches the end of the context.

    Some libraries catch an interrupt while they are being imported and continue. Later Ctrl-C are ignored, so that
    clean-up is not interrupted.
    """

    def __init__(self) -> None:
        self.seen = False
        main = threading.current_thread() is threading.main_thread()
        self._handles = main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # as in a background job

    def __enter__(self) -> Interrupts:
        if self._handles:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
            self._alarm_before = signal.signal(signal.SIGALRM, self._again) if hasattr(signal, "setitimer") else None
        return self

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.seen:
            self.seen = True
            self._arm(AGAIN)
            raise KeyboardInterrupt

    def _again(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._arm(AGAIN)
        raise KeyboardInterrupt

    def _arm(self, seconds: float) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def calm(self) -> None:
        """The interrupt has arrived: do not raise it again."""
        if self._handles:
            self._arm(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.calm()
        if self._handles:
            if signal.getsignal(signal.SIGINT) == self._interrupt:  # unless the process is about to end
                signal.signal(signal.SIGINT, self._before)
            if hasattr(signal, "setitimer"):
                signal.signal(signal.SIGALRM, self._alarm_before)
