"""Waiting in tests: for as long as it takes, and no longer."""

import threading
import time

# Far longer than anything takes, even on a busy machine: what has not happened by then never does.
PATIENCE_SECONDS = 300.
_LOOK_SECONDS = 0.005


def wait_until(condition, seconds: float = PATIENCE_SECONDS):
  """Looks until `condition()` is true, for what no event announces.

  Raises:
    TimeoutError: it never was.
  """
  deadline = time.monotonic() + seconds
  never = threading.Event()
  while not condition():
    if time.monotonic() > deadline:
      raise TimeoutError(f'still not true after {seconds:g} s')
    never.wait(_LOOK_SECONDS)


def start(function, *args):
  """Calls `function` in a thread of its own, which does not outlive the process.

  Returns:
    A function that waits for the end of the call, then returns or raises what the call did. Its attribute `ended` is
    an event.
  """
  outcome = {}
  ended = threading.Event()

  def run():
    try:
      outcome['value'] = function(*args)
    except BaseException as error:  # Raised where it is awaited.
      outcome['error'] = error
    ended.set()

  def result():
    if not ended.wait(PATIENCE_SECONDS):
      raise TimeoutError(f'the call did not end within {PATIENCE_SECONDS:g} s')
    if 'error' in outcome:
      raise outcome['error']
    return outcome['value']

  threading.Thread(target=run, name='started by a test', daemon=True).start()
  result.ended = ended
  return result
