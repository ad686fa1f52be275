"""What a rank with a GPU is doing, for the watchdog: the host's pieces of work and the device's.

The host runs ahead of the device and then waits for it, and some of those waits spin. So within a
step its processor time shows nothing; the marks that the host makes and the device reaches do.
"""

from __future__ import annotations

from gnnhpc.distributed.watchdog import Activity
from gnnhpc.engines.timing import StepTimer


class DeviceActivity:
    """A step timer's activity where its marks are on a device."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer

    @property
    def work(self) -> int:
        clock = self._timer.clock
        return self._timer.work + clock.marked() + clock.reached()

    @property
    def doing(self) -> str:
        """Within a step, what the device is doing: it stands still where a transfer hangs."""
        timer = self._timer
        return (timer.doing_on_device() if timer.in_step else None) or timer.doing

    @property
    def spins(self) -> bool:
        return self._timer.in_step


def activity_of(timer: StepTimer) -> Activity:
    return DeviceActivity(timer) if timer.clock.on_device else timer
