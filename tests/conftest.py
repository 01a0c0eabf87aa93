import signal

import pytest
import torch

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells start what runs in the background without Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # the networks of these tests are tiny: a second thread only waits for the first


@pytest.fixture(autouse=True)
def _same_initial_weights():
    """Modules draw their first weights from torch's global generator; every test finds it in the same state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
