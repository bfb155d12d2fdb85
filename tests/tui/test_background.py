"""The two threads behind the screens."""

import threading

from molt_tui.tui.background import Answer, Background, Ingested, one_line


class Pump:
    """Stands for an app or a screen that never gets round to its messages."""

    def __init__(self) -> None:
        self.got: list = []
        self.arrived = threading.Condition()

    def post_message(self, message) -> bool:
        with self.arrived:
            self.got.append(message)
            self.arrived.notify_all()
        return True

    def wait(self, count: int) -> list:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.got) >= count, 10)
            return list(self.got)


def test_ingest_goes_on_while_the_screen_is_stalled_and_announces_once():
    passes, many = [], threading.Event()

    def ingest():
        passes.append(1)
        if len(passes) > 20:
            many.set()

    app = Pump()
    background = Background(app, ingest, 0.001)
    background.start()
    assert many.wait(10)
    assert len(app.got) == 1
    background.handled()
    app.wait(2)
    background.stop()


def test_a_failing_ingest_is_one_line_and_not_the_end():
    def ingest():
        raise OSError("disk is gone\nlong story")

    app = Pump()
    background = Background(app, ingest, 0.001)
    background.start()
    (first,) = app.wait(1)
    assert isinstance(first, Ingested) and first.error == "disk is gone"
    background.handled()
    app.wait(2)
    background.stop()


def test_questions_are_answered_once_and_a_newer_one_replaces_a_waiting_one():
    app, screen, gate = Pump(), Pump(), threading.Event()
    background = Background(app, lambda: None, 60)
    background.start()
    background.ask(screen, "slow", lambda: gate.wait(10))
    for i in range(5):
        background.ask(screen, "run", lambda i=i: i)
    gate.set()
    answers = screen.wait(2)
    assert [(a.topic, a.value) for a in answers][-1] == ("run", 4)
    assert background.wait_idle(5)
    assert len(screen.got) == 2
    background.stop()


def test_an_error_travels_as_one_line():
    app, screen = Pump(), Pump()
    background = Background(app, lambda: None, 60)
    background.start()
    background.act(screen, "stop", lambda: 1 / 0)
    (answer,) = screen.wait(1)
    assert isinstance(answer, Answer) and answer.error == "division by zero"
    assert one_line(ValueError()) == "ValueError"
    background.stop()
