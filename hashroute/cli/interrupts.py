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

    last: the process ends after this context, so that Ctrl-C stays ignored.
    """

    def __init__(self, last: bool) -> None:
        self.seen = False
        self.last = last
        main = threading.current_thread() is threading.main_thread()
        self._handles = main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # as in a background job

    def __enter__(self) -> Interrupts:
        if self._handles:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
            self._alarm_before = signal.signal(signal.SIGALRM, self._again) if hasattr(signal, "setitimer") else None
        return self

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.seen = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # programs that clean-up starts inherit this
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
            if not (self.seen and self.last):
                signal.signal(signal.SIGINT, self._before)
            if hasattr(signal, "setitimer"):
                signal.signal(signal.SIGALRM, self._alarm_before)
