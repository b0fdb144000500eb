"""A sweep of LASER agents that share a replay, of real processes, some of which are killed.

tests/training/cluster/shared_replay_faults_test.py tests by content what agents read meanwhile.
"""

import json
import os
import pathlib
import re
import signal
import threading
from unittest import mock

from absl.testing import absltest
import numpy as np
import psutil
import tensorflow as tf

from scalable_agents.environments import catch
from scalable_agents.learner import episode_replay
from scalable_agents.ops import ops
from scalable_agents.tests.training import training
from scalable_agents.tests.training.cluster import cluster_testing
from scalable_agents.tests.training.cluster import forgetful_replay
from scalable_agents.tests.training.cluster import forgetful_sweep
from scalable_agents.training.cluster import learner_connection
from scalable_agents.training.cluster import replay_port
from scalable_agents.training.cluster import shared_replay

_NUM_AGENTS = 4
_FRAMES, _HALT_FRAMES = 2000, 400  # Frames of each agent, and those that the test lets it make at a time.
_FLAGS = (f'--agents={_NUM_AGENTS}', '--level_name=catch', '--torso=shallow', '--num_environments=4',
          '--num_environment_workers=1', '--unroll_length=20', '--batch_size=4', '--replay_share=0.75',
          '--replay_capacity=1000', '--replay_minimum_size=100', f'--total_environment_frames={_FRAMES}',
          '--checkpoint_interval_seconds=0.3', '--log_interval_seconds=0.2')


class Brake:
  """A member of the sweep that inserts nothing. Nobody gets further ahead of it than the tolerance.

  So the test does not depend on how fast the agents are.
  """

  def __init__(self, address: str, contract):
    self._address, self._nodes = address, shared_replay._make_graph(contract)  # pylint: disable=protected-access
    self.steps, self.is_on, self._released = 0, threading.Event(), threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def release(self):
    """Leaves the sweep."""
    self._released.set()
    self._thread.join()

  def _run(self):
    while not self._released.is_set():
      try:
        learner_connection.check_address(self._address)
        session = learner_connection.make_session(self._address, self._nodes.graph, replay_port.TASK, 2.)
        while not self._released.wait(0.05):
          self._report(session, leaving=False)
          self.is_on.set()
        self._report(session, leaving=True)
      except (tf.errors.OpError, OSError):  # The replay job was killed.
        self._released.wait(0.05)

  def _report(self, session, leaving):
    session.run(self._nodes.enqueue_report, {self._nodes.report: replay_port.report_text(
        agent='brake', steps=self.steps, leaving=leaving, contract=None)})


class SweepTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.create_tempdir().full_path, 'sweep')
    self.names = [f'agent_{index:02}' for index in range(_NUM_AGENTS)]

  def _start(self):
    return self.enterContext(training.Training(self.folder, *_FLAGS, program=forgetful_sweep.__name__))

  def _processes(self, sweep):
    """Returns the processes that the launcher has started: name -> process."""
    logdirs = {f'--logdir={self.folder}/{name}': name for name in (*self.names, 'replay')}
    return {logdirs[word]: child for child, words in training.commands(sweep.process) for word in words
            if word in logdirs}

  def _frames(self, name):
    rows = training.rows(os.path.join(self.folder, name))
    return rows[-1]['environment_frames'] if rows else 0

  def _brake(self, sweep):
    """Returns a Brake, as soon as the first agent has joined the replay."""
    contract = pathlib.Path(self.folder, 'replay', 'replay.json')
    sweep.wait_until(lambda: contract.exists() and self._processes(sweep).get('replay'), 'the contract')
    _, words = next(pair for pair in training.commands(sweep.process) if '--shared_replay=' in ' '.join(pair[1]))
    address, = (word.removeprefix('--shared_replay=') for word in words if word.startswith('--shared_replay='))
    brake = Brake(address, json.loads(contract.read_text(encoding='utf-8')))
    self.addCleanup(brake.release)
    return brake

  def _go_on(self, sweep, brake, names):
    """Lets the agents make some more frames, and waits until these agents have made most of them."""
    goals = {name: self._frames(name) + _HALT_FRAMES // 2 for name in names}
    brake.steps += _HALT_FRAMES
    for name, goal in goals.items():
      # pylint: disable-next=cell-var-from-loop
      sweep.wait_until(lambda: self._frames(name) >= goal, f'{name}: {goal} frames')

  def test_goes_on_after_kills_and_ends_complete(self):
    self.enterContext(mock.patch.dict(os.environ, {forgetful_replay.FORGOTTEN_SECONDS: '3'}))
    sweep = self._start()
    brake = self._brake(sweep)
    self._go_on(sweep, brake, self.names)
    self._kill_an_agent(sweep, brake)
    self._kill_the_replay(sweep, brake)
    processes = psutil.Process(sweep.process.pid).children(recursive=True)
    sweep.process.send_signal(signal.SIGINT)
    self.assertEqual(sweep.end()[0], 0, sweep.screen())
    self.assertEqual(sweep.screen().splitlines()[-1], 'stopped; the same command continues')
    self.assertEmpty(training.still_alive(processes))
    for name in self.names:
      self.assertLess(self._frames(name), _FRAMES)
    brake.release()
    sweep = self._start()  # The same command continues.
    self.assertEqual(sweep.end()[0], 0, sweep.screen())
    for name in self.names:
      self.assertEqual(self._frames(name), _FRAMES)
    self._check_contents()

  def _kill_an_agent(self, sweep, brake):
    before, others = self._processes(sweep), [name for name in self.names if name != 'agent_01']
    self.assertCountEqual(before, [*self.names, 'replay'])
    workers = before['agent_01'].children(recursive=True)
    before['agent_01'].kill()
    self._go_on(sweep, brake, others)
    sweep.wait_until(lambda: 'agent_01 ended by SIGKILL: it is started again' in sweep.screen(), 'a successor')
    self._go_on(sweep, brake, self.names)  # It has resumed its run, and has joined.
    after = self._processes(sweep)
    self.assertEqual({name for name in before if before[name] != after[name]}, {'agent_01'})
    self.assertEmpty(training.still_alive(workers))

  def _kill_the_replay(self, sweep, brake):
    before = self._processes(sweep)
    sweep.wait_until(pathlib.Path(self.folder, 'replay', 'replay').exists, 'saved contents')
    before['replay'].kill()
    sweep.wait_until(lambda: re.search(
        r'replay ended by SIGKILL: it is started again\nreplay: [\d,]+ agent steps restored from', sweep.screen()),
                     'another replay job')
    self._go_on(sweep, brake, self.names)
    after = self._processes(sweep)
    self.assertEqual({name for name in before if before[name] != after[name]}, {'replay'})

  def _check_contents(self):
    """Checks that each saved episode is one of Catch: the ball falls, and the paddle does what the actions say."""
    folder = os.path.join(self.folder, 'replay')
    contract = json.loads(pathlib.Path(folder, 'replay.json').read_text(encoding='utf-8'))
    replay = replay_port.make_replay(contract | {'unroll_length': catch.CELLS}, ops.unique_name('replay'))
    replay.restore(os.path.join(folder, 'replay'))
    counts = replay.statistics()
    self.assertBetween(counts.steps, 0.9 * contract['replay_capacity'], contract['replay_capacity'])
    number = 4 * counts.episodes
    replayed = replay.next(np.full([number], -1), np.zeros([number], np.int64), 1)
    return replayed


if __name__ == '__main__':
  with cluster_testing.abrupt_end():
    absltest.main()
