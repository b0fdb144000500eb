"""Waits for training to end, handles stop signals, and tells the user about long waits."""

from collections.abc import Callable
import contextlib
import threading
import time

from scalable_agents.processes import stop_signals

UPDATE_PATIENCE_SECONDS = 3.  # The least time that Ctrl-C waits for the current update.
_PATIENCE_UPDATES = 3.        # It waits for this many times the longest update so far, if that is longer.
_IDLE_PATIENCE_SECONDS = 120.  # The limit if no update is running: for a call to a shared replay, or for the disk.
_SIGNAL_CHECK_SECONDS = 0.2
_AGREEMENT_SECONDS = 60.      # Time that the end waits for an update that all learners make together.
_WAITING_MESSAGE_SECONDS = 30.  # If an update waits for other learners for this time, the user is told.


class RunEnd:
  """The main thread waits here while other threads train.

  Attributes:
    reached: an event that is set when training ends for any reason.
    signals: counts the signals that ask for the end.
    have_peers: whether there are learners in other processes. All of them end together, after an update.
  """

  def __init__(self, have_peers: bool, say: Callable[[str], None]):
    """Waits for nothing yet.

    Args:
      have_peers: see the class.
      say: shows the user a line.
    """
    self.reached = threading.Event()
    self.signals = stop_signals.StopSignals()
    self.have_peers = have_peers
    self._say = say
    self._update_began = None
    self._told_of_waiting = 0.
    self._longest_update = 0.

  def wait(self):
    """Waits until the end is reached, or until a signal asks for it. Then the end counts as reached.

    With other learners, a signal is not the end yet: all learners must agree in an update. This waits for them for a
    limited time, and until a signal after the message about it at most.
    """
    while not self.reached.wait(_SIGNAL_CHECK_SECONDS) and not self.signals.count:
      self._tell_of_waiting()
    if self.have_peers and not self.reached.wait(UPDATE_PATIENCE_SECONDS):
      self._await_agreement()
    self.reached.set()

  @contextlib.contextmanager
  def updating(self):
    """A context in which an update runs, perhaps waiting for other learners."""
    self._update_began = began = time.monotonic()
    try:
      yield
    finally:
      self._update_began = None
      self._longest_update = max(self._longest_update, time.monotonic() - began)

  def await_update(self, learner: threading.Thread):
    """Waits, after `wait`, until the learner's thread has ended. The thread ends after the current update.

    After a signal, the time is limited to a few times the longest update so far. So slow updates can end too, and the
    training since the last checkpoint is not lost. If no update is running, the thread waits for a replay or a disk,
    and gets _IDLE_PATIENCE_SECONDS. With other learners, `wait` has waited for the update already, and
    the longest update may include a wait for them; so the time is UPDATE_PATIENCE_SECONDS.

    A signal after the message about a long wait ends it. Those before are one request: a service manager may signal a
    launcher and its runs, and the launcher then signals the runs again.

    Without a signal, a lone learner's update ends by itself. An update with other learners gets a minute, because it
    may wait for a learner that has no actors.

    Args:
      learner: the thread. If it is still alive afterwards, an update may be running.
    """
    deadline = time.monotonic() + _AGREEMENT_SECONDS
    while learner.is_alive() and not self.signals.count:
      if self.have_peers and time.monotonic() > deadline:
        return
      learner.join(_SIGNAL_CHECK_SECONDS)
    patience = UPDATE_PATIENCE_SECONDS
    if not self.have_peers:
      patience = max(patience, _PATIENCE_UPDATES * self._longest_update)
    began = time.monotonic()
    told = None  # The number of signals before the message.
    while learner.is_alive() and told in (None, self.signals.count):
      limit, awaited = patience, 'the current update, to save it'
      if self._update_began is None and patience < _IDLE_PATIENCE_SECONDS:
        limit, awaited = _IDLE_PATIENCE_SECONDS, 'the replay or the disk, to save the run'
      waited = time.monotonic() - began
      if waited >= limit:
        return
      if told is None and waited > UPDATE_PATIENCE_SECONDS:
        told = self.signals.count
        self._say(f'waiting up to {limit:.0f} s for {awaited}; a second signal ends at once')
      learner.join(_SIGNAL_CHECK_SECONDS)

  def await_others(self, wait: Callable[[], None]) -> bool:
    """Calls `wait`, which waits for other learners, and raises its error. Returns False if a signal ends the wait.

    It runs in a thread of its own, because a signal cannot interrupt a collective operation in the main thread.
    """
    told, failed = self.signals.count, []

    def call():
      try:
        wait()
      except Exception as error:  # Raised below.
        failed.append(error)

    waiting = threading.Thread(target=call, name='wait for other learners', daemon=True)
    waiting.start()
    waiting.join(UPDATE_PATIENCE_SECONDS)
    if waiting.is_alive():
      self._say('waiting until the other learners have saved, too; a signal ends this wait')
    while waiting.is_alive() and self.signals.count == told:
      waiting.join(_SIGNAL_CHECK_SECONDS)
    if failed:
      raise failed[0]
    return not waiting.is_alive()

  def _await_agreement(self):
    told = self.signals.count
    self._say('the learners end together, with their next update; send a second signal to end without the others')
    deadline = time.monotonic() + _AGREEMENT_SECONDS
    while not self.reached.wait(_SIGNAL_CHECK_SECONDS) and self.signals.count == told and time.monotonic() < deadline:
      pass

  def _tell_of_waiting(self):
    """Tells the user at intervals that an update waits for other learners, which may have no actors."""
    began, now = self._update_began, time.monotonic()
    if self.have_peers and began and now - max(began, self._told_of_waiting) > _WAITING_MESSAGE_SECONDS:
      self._told_of_waiting = now
      self._say(f'the current update has taken {now - began:.0f} s so far: check that every learner has actors')
