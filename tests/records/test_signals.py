import os
import signal
import threading

import pytest

from advnas.records.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request_while_the_block_runs(number):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert not signals.requested
        os.kill(os.getpid(), number)
        assert signals.requested
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_interrupts_at_once():
    with StopSignals():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # one process of a group may send it to the others again
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_another_thread_changes_nothing():
    handlers = []

    def work():
        with StopSignals() as signals:
            handlers.extend([signal.getsignal(signal.SIGINT), signals.requested])

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before, False]
