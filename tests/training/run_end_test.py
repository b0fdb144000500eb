"""Tests the wait for the end of training: signals, other learners, and what the user is told."""

import signal
import threading
from unittest import mock

from absl.testing import absltest

from scalable_agents.tests.actor import waiting
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.training import run_end


class RunEndTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    signal_handlers.restore_after(self)
    self.said = []
    self.enterContext(mock.patch.multiple(
        run_end, UPDATE_PATIENCE_SECONDS=0.01, _IDLE_PATIENCE_SECONDS=0.01, _SIGNAL_CHECK_SECONDS=0.01))

  def _end(self, have_peers):
    end = run_end.RunEnd(have_peers, self.said.append)
    end.signals.install()
    return end

  def test_training_ends_by_itself(self):
    end = self._end(have_peers=True)
    waiting.start(end.reached.set)
    end.wait()
    self.assertEmpty(self.said)

  def test_a_signal_is_the_end_of_a_lone_learner(self):
    end = self._end(have_peers=False)
    signal.raise_signal(signal.SIGTERM)
    end.wait()
    self.assertTrue(end.reached.is_set())
    self.assertEmpty(self.said)

  def test_a_signal_waits_for_the_other_learners(self):
    end, agreed = self._end(have_peers=True), threading.Event()

    def agree():
      waiting.wait_until(lambda: self.said)
      agreed.set()
      end.reached.set()

    signal.raise_signal(signal.SIGINT)
    waiting.start(agree)
    end.wait()
    self.assertTrue(agreed.is_set())
    self.assertStartsWith(self.said[0], 'the learners end together, with their next update; send a second signal')

  def test_a_second_signal_ends_the_wait_for_others(self):
    end = self._end(have_peers=True)
    signal.raise_signal(signal.SIGINT)
    told = []
    end._say = lambda text: (told.append(text), signal.raise_signal(signal.SIGINT))
    with mock.patch.object(run_end, '_AGREEMENT_SECONDS', 1e9):
      end.wait()
    self.assertLen(told, 1)

  def test_regression_signals_before_the_message_are_one_request(self):
    """A service manager signals a population and its runs, and the population signals the runs again."""
    end, goes_on = self._end(have_peers=True), threading.Event()
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    waiting.start(lambda: (waiting.wait_until(lambda: self.said), end.reached.set()))
    with mock.patch.object(run_end, '_AGREEMENT_SECONDS', 1e9):
      end.wait()
    alone = self._end(have_peers=False)
    with alone.updating():
      pass
    learner = threading.Thread(target=goes_on.wait, daemon=True)
    learner.start()
    signal.raise_signal(signal.SIGTERM)
    join = learner.join

    def signal_again(seconds):
      signal.raise_signal(signal.SIGTERM)
      learner.join = join
      waiting.start(lambda: (waiting.wait_until(lambda: len(self.said) > 1), goes_on.set()))
      join(seconds)

    learner.join = signal_again
    with mock.patch.object(run_end, '_PATIENCE_UPDATES', 1e12):
      alone.await_update(learner)
    self.assertFalse(learner.is_alive())

  def test_the_wait_for_others_is_limited(self):
    end = self._end(have_peers=True)
    signal.raise_signal(signal.SIGINT)
    with mock.patch.object(run_end, '_AGREEMENT_SECONDS', 0.1):
      end.wait()
    self.assertLen(self.said, 1)

  def test_patience_follows_the_longest_update(self):
    end, goes_on = self._end(have_peers=False), threading.Event()
    learner = threading.Thread(target=goes_on.wait, daemon=True)
    learner.start()
    signal.raise_signal(signal.SIGINT)
    end.await_update(learner)  # No update so far: the least patience.
    self.assertTrue(learner.is_alive())
    self.assertEmpty(self.said)
    clock = mock.Mock(monotonic=mock.Mock(side_effect=[100., 1100.]))
    with mock.patch.object(run_end, 'time', clock), end.updating():
      pass
    waiting.start(lambda: (waiting.wait_until(lambda: self.said), goes_on.set()))
    end.await_update(learner)
    self.assertFalse(learner.is_alive())
    self.assertEqual(self.said, [
        'waiting up to 3000 s for the current update, to save it; a second signal ends at once'])

  def test_a_replay_or_a_disk_has_more_time_than_an_update(self):
    end, goes_on = self._end(have_peers=False), threading.Event()
    learner = threading.Thread(target=goes_on.wait, daemon=True)
    learner.start()
    signal.raise_signal(signal.SIGINT)
    waiting.start(lambda: (waiting.wait_until(lambda: self.said), goes_on.set()))
    with mock.patch.object(run_end, '_IDLE_PATIENCE_SECONDS', waiting.PATIENCE_SECONDS):
      end.await_update(learner)
    self.assertFalse(learner.is_alive())
    self.assertRegex(self.said[0], '^waiting up to [0-9]+ s for the replay or the disk, to save the run; a second ')

  def test_a_second_signal_ends_the_wait_for_an_update(self):
    end = self._end(have_peers=False)
    learner = threading.Thread(target=threading.Event().wait, daemon=True)
    learner.start()
    signal.raise_signal(signal.SIGINT)
    with end.updating():
      pass
    end._say = lambda unused_text: signal.raise_signal(signal.SIGINT)
    with mock.patch.object(run_end, '_PATIENCE_UPDATES', 1e12):
      end.await_update(learner)  # For 1e12 updates.
    self.assertTrue(learner.is_alive())

  def test_without_a_signal_an_update_ends_by_itself_unless_it_waits_for_others(self):
    with mock.patch.object(run_end, '_AGREEMENT_SECONDS', 0.):
      endless = mock.Mock(**{'is_alive.return_value': True})
      self._end(have_peers=True).await_update(endless)
      long = mock.Mock(**{'is_alive.side_effect': [True] * 100 + [False] * 2})
      self._end(have_peers=False).await_update(long)
      self.assertEqual(long.join.call_count, 100)
      endless.join.side_effect = lambda _: signal.raise_signal(signal.SIGINT)
      self._end(have_peers=False).await_update(endless)
    self.assertEmpty(self.said)

  def test_a_signal_ends_the_wait_until_the_others_have_saved(self):
    end = self._end(have_peers=True)
    with mock.patch.object(run_end, 'UPDATE_PATIENCE_SECONDS', waiting.PATIENCE_SECONDS):
      self.assertTrue(end.await_others(lambda: None))
      with self.assertRaisesRegex(ValueError, '^gone$'):
        end.await_others(mock.Mock(side_effect=ValueError('gone')))
    self.assertEmpty(self.said)
    signal.raise_signal(signal.SIGINT)  # The one that has ended the training.
    end._say = lambda text: (self.said.append(text), signal.raise_signal(signal.SIGINT))
    self.assertFalse(end.await_others(threading.Event().wait))
    self.assertEqual(self.said, ['waiting until the other learners have saved, too; a signal ends this wait'])

  def test_with_others_the_update_was_waited_for_already(self):
    end = self._end(have_peers=True)
    learner = threading.Thread(target=threading.Event().wait, daemon=True)
    learner.start()
    with end.updating():
      pass
    signal.raise_signal(signal.SIGINT)
    told = []
    end._say = lambda text: (told.append(text), signal.raise_signal(signal.SIGINT))
    with mock.patch.object(run_end, '_PATIENCE_UPDATES', 1e12):
      end.wait()
      waiting.start(lambda: end.await_update(learner))()  # Neither for 1e12 updates, nor until a third signal.
    self.assertTrue(learner.is_alive())
    self.assertLen(told, 1)

  def test_an_update_that_waits_for_other_learners_is_spoken_of(self):
    end = self._end(have_peers=True)

    def update():
      with end.updating():
        waiting.wait_until(lambda: len(self.said) > 2)
      end.reached.set()

    with mock.patch.object(run_end, '_WAITING_MESSAGE_SECONDS', 0.05):
      waiting.start(update)
      end.wait()
    self.assertRegex(self.said[0], r'^the current update has taken \d+ s so far: check that every learner has actors$')


if __name__ == '__main__':
  absltest.main()
