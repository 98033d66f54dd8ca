"""Long recorded ranges: their graphs are freed without recursion, which would overflow the stack."""

import subprocess
import sys

# In a thread with a small stack 2,000 steps are as many as 60,000 in the main thread.
PROGRAM = """
import threading, torch, remat

w, start = torch.tensor(0.9, requires_grad=True), torch.tensor(0.5)

def run():
    for differentiated in True, False:
        last, ys = remat.scan(lambda h, _: (torch.sin(h * w) + w, h), start, length=2000, memory="1 GiB")
        if differentiated:
            last.backward()
        del last, ys
    print("ended", flush=True)

threading.stack_size(256 * 1024)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def test_the_graph_of_thousands_of_steps_is_freed():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
