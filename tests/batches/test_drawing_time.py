"""What is drawn while no step is timed is handed over as much later."""

from __future__ import annotations

import threading
import time

from gnnhpc.batches.sampled.drawing_time import DrawingTime


def test_time_runs_while_it_goes_on() -> None:
    drawing = DrawingTime()
    drawing.stand_still()
    drawing.stand_still()
    stood, began = drawing.seconds(), time.perf_counter()
    time.sleep(0.01)
    assert not drawing.is_going
    assert drawing.seconds() == stood
    drawing.go_on()
    drawing.go_on()
    time.sleep(0.01)
    assert drawing.is_going
    assert 0.01 <= drawing.seconds() - stood <= time.perf_counter() - began


def test_a_draw_pays_for_what_it_did_meanwhile() -> None:
    drawing = DrawingTime()
    begun, still, took = threading.Event(), threading.Event(), []

    def draw() -> None:
        before = drawing.seconds()
        with drawing.draw():
            began = time.perf_counter()
            begun.set()
            still.wait()
            time.sleep(0.05)
            took.append(time.perf_counter() - began)
        took.append(drawing.seconds() - before)

    thread = threading.Thread(target=draw)
    thread.start()
    begun.wait()
    drawing.stand_still()
    still.set()
    thread.join(0.2)
    # It has ended long since, and is held back.
    assert thread.is_alive()
    drawing.go_on()
    thread.join()
    assert took[1] >= took[0] >= 0.05


def test_a_draw_begins_when_time_runs() -> None:
    drawing = DrawingTime()
    drawing.stand_still()
    begun = threading.Event()

    def draw() -> None:
        with drawing.draw():
            begun.set()

    thread = threading.Thread(target=draw)
    thread.start()
    assert not begun.wait(0.05)
    drawing.go_on()
    thread.join()
    assert begun.is_set()
