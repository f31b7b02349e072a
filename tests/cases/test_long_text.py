"""A long text keeps nobody else waiting. (Case 30.)"""

import threading
import time


def test_other_threads_run_while_a_long_text_is_tokenised(tiny):
    """The tokenizer once held the interpreter for seconds a megabyte: every stream stood still."""
    text, begun, done = "the cat sat on the mat. " * 60_000, threading.Event(), threading.Event()

    def tokenise():
        begun.set()
        tiny.checkpoint.tokenizer.encode(text)
        done.set()

    thread = threading.Thread(target=tokenise)
    thread.start()
    begun.wait()
    turns = 0
    while not done.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    assert turns > 20
