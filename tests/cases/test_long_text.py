"""A long text keeps nobody else waiting. (Case 30.)"""

import threading
import time

from real import request


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


def test_a_long_list_of_ids_is_read_once_and_not_on_the_engines_thread(tiny):
    """A request's lists may hold millions of ids, and it may want 128 choices."""
    with tiny.engine() as running:
        intake = running.engine.intake
        prepared = intake.prepare(request(n=3, allowed_token_ids=(40, 41) * 100_000))
        states = [intake.open(prepared, choice).state for choice in range(3)]
        assert all(state._shaping is prepared.state._shaping for state in states)
        states[0].advance(40)
        assert [state.output_len for state in (*states, prepared.state)] == [1, 0, 0, 0]
