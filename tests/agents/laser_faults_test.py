"""A sweep of LASER agents that share a replay, of real processes, some of which are killed.

tests/experience/shared_replay_faults_test.py tests by content what agents read meanwhile.
"""

import dataclasses
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

from scalable_agents.agents import configs
from scalable_agents.environments import catch
from scalable_agents.experience import replay_port
from scalable_agents.experience import shared_replay
from scalable_agents.launch import atari57_protocol
from scalable_agents.ops import ops
from scalable_agents.processes import ports
from scalable_agents.processes import sessions
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.tests.experience import forgetful_replay
from scalable_agents.tests.experience import forgetful_sweep
from scalable_agents.tests.suites import ending
from scalable_agents.tests.training import training

_NUM_AGENTS = 2
_FRAMES, _SOME_FRAMES = 1600, 60  # Frames of each agent, and those that the test lets it make at a time.
_FLAGS = ('--level_name=catch', '--torso=shallow', '--num_environments=2', '--num_environment_workers=1',
          '--unroll_length=20', '--batch_size=4', '--replay_share=0.75', '--replay_capacity=1000',
          '--replay_minimum_size=100', f'--total_environment_frames={_FRAMES}')
_AFTER_EACH_UPDATE = '--checkpoint_interval_seconds=0.001', '--log_interval_seconds=0.001'


class Brake:
  """A member of the sweep that inserts nothing. Nobody gets further ahead of it than the tolerance.

  So the test does not depend on how fast the agents are.
  """

  def __init__(self, address: str, contract):
    self._address, self._contract = address, contract
    self._nodes = shared_replay._make_graph(contract, lambda index, rows: tf.ones_like(index, tf.bool))
    self.steps, self.joins, self._released = 0, 0, threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def release(self):
    """Leaves the sweep."""
    self._released.set()
    self._thread.join()

  def _run(self):
    while not self._released.is_set():
      try:
        ports.check_address(self._address)
        session = sessions.make_session(self._address, self._nodes.graph, replay_port.TASK, 2.)
        self._report(session, leaving=False)
        self.joins += 1
        while not self._released.wait(0.05):
          self._report(session, leaving=False)
        self._report(session, leaving=True)
      except (tf.errors.OpError, OSError):  # The replay job was killed.
        self._released.wait(0.05)

  def _report(self, session, leaving):
    session.run(self._nodes.enqueue_report, {self._nodes.report: replay_port.report_text(
        agent='brake', steps=self.steps, leaving=leaving, contract=self._contract)})


class SweepTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = os.path.join(self.create_tempdir().full_path, 'sweep')
    self.names = [f'agent_{index:02}' for index in range(_NUM_AGENTS)]

  def _start(self, num_agents, *flags):
    return self.enterContext(training.Training(
        self.folder, f'--agents={num_agents}', *_FLAGS, *flags, program=forgetful_sweep.__name__))

  def _processes(self):
    """Returns the processes of the sweep that hold their run directories: name -> process."""
    locks = {name: pathlib.Path(self.folder, name, '.lock') for name in self.names}
    locks['replay'] = pathlib.Path(self.folder, 'replay', '.lock')
    matches = {name: re.match(r'process (\d+) on ', lock.read_text(encoding='utf-8')) for name, lock in locks.items()}
    return {name: psutil.Process(int(match[1])) for name, match in matches.items()}

  def _frames(self, name):
    rows = training.rows(os.path.join(self.folder, name))
    return rows[-1]['environment_frames'] if rows else 0

  def _brake(self, sweep):
    """Returns a Brake, as soon as the first agent has joined the replay."""
    contract = pathlib.Path(self.folder, 'replay', 'replay.json')
    sweep.wait_until(contract.exists, 'the contract')
    logdir = next(config.parent for config in pathlib.Path(self.folder).glob('agent_*/config.json'))
    address = run_directory.read_config(str(logdir))['flags']['shared_replay']
    brake = Brake(address, json.loads(contract.read_text(encoding='utf-8')))
    self.addCleanup(brake.release)
    sweep.wait_until(lambda: brake.joins, 'the brake')
    return brake

  def _go_on(self, sweep, brake, names):
    """Lets the agents make more frames, until these agents have done so."""
    lowest, begin = {name: self._frames(name) for name in names}, brake.steps

    def have_gone_on():
      for name in names:  # One that resumes its run has fewer frames than before.
        lowest[name] = min(lowest[name], self._frames(name))
      made = min(self._frames(name) - lowest[name] for name in names)
      brake.steps = max(brake.steps, begin + 2 * _SOME_FRAMES + made)  # One that joins late needs room, too.
      return made >= _SOME_FRAMES

    sweep.wait_until(have_gone_on, f'{", ".join(names)}: {_SOME_FRAMES} frames more')

  def test_what_is_refused_is_one_line_and_leaves_nothing(self):
    self.enterContext(mock.patch.dict(os.environ, {forgetful_replay.FORGOTTEN_SECONDS: '6'}))
    file = self.create_tempfile().full_path
    for folder, flag, wanted in (
        (self.folder, '--torso=shalow', 'agent_0[01]: --torso=shalow: want one of shallow, dqn, deep, deep_4x'),
        (file, '--torso=shallow', rf'\w+: {file}/\w+: Not a directory: correct this, or choose another folder'),
        ('/proc/x', '--torso=shallow', r'\w+: /proc/x: No such file or directory: .*'),
        ('x' * 256, '--torso=shallow', '.* the path is too long: .*')):
      with self.subTest(folder), training.Training(
          folder, '--agents=2', *_FLAGS, flag, program=forgetful_sweep.__name__) as sweep:
        self.assertEqual(sweep.end()[0], 1)
        self.assertRegex(sweep.screen(), rf'(\A|\n)error: {wanted}\n\Z')
        self.assertNotIn('Traceback', sweep.screen())
    self.assertFalse(os.path.exists(self.folder))
    self.assertEqual(os.path.getsize(file), 0)

  def test_goes_on_after_kills_and_ends_complete(self):
    self.enterContext(mock.patch.dict(os.environ, {forgetful_replay.FORGOTTEN_SECONDS: '6'}))
    sweep = self._start(_NUM_AGENTS, *_AFTER_EACH_UPDATE)
    brake = self._brake(sweep)
    self._go_on(sweep, brake, self.names)
    self._kill_an_agent(sweep, brake)
    self._kill_the_replay(sweep, brake)
    processes = psutil.Process(sweep.process.pid).children(recursive=True)
    sweep.process.send_signal(signal.SIGINT)
    self.assertEqual(sweep.end()[0], 0, sweep.screen())
    self.assertIn('\nstopped; the same command continues\n', sweep.screen())
    self.assertEmpty(training.still_alive(processes))
    for name in self.names:
      self.assertLess(self._frames(name), _FRAMES)
    brake.release()
    sweep = self._start(_NUM_AGENTS)  # It goes on.
    self.assertEqual(sweep.end()[0], 0, sweep.screen())
    for name in self.names:
      self.assertEqual(self._frames(name), _FRAMES)
    self._check_contents()

  def _kill_an_agent(self, sweep, brake):
    before = self._processes()
    self.assertCountEqual(before, [*self.names, 'replay'])
    workers = before['agent_01'].children(recursive=True)
    before['agent_01'].kill()
    self._go_on(sweep, brake, ['agent_00'])
    sweep.wait_until(lambda: 'agent_01 ended by SIGKILL: it is started again' in sweep.screen(), 'a successor')
    self._go_on(sweep, brake, self.names)  # It has resumed its run, and has joined.
    after = self._processes()
    self.assertEqual({name for name in before if before[name] != after[name]}, {'agent_01'})
    self.assertEmpty(training.still_alive(workers))

  def _kill_the_replay(self, sweep, brake):
    before = self._processes()
    sweep.wait_until(pathlib.Path(self.folder, 'replay', 'replay').exists, 'saved contents')
    joins = brake.joins
    before['replay'].kill()
    restored = r'(?s)\nreplay ended by SIGKILL: it is started again\n.*replay: [\d,]+ agent steps restored from'
    sweep.wait_until(lambda: re.search(restored, sweep.screen()), 'another replay job')
    sweep.wait_until(lambda: brake.joins > joins, 'the brake')
    self._go_on(sweep, brake, self.names)
    after = self._processes()
    self.assertEqual({name for name in before if before[name] != after[name]}, {'replay'})

  def _check_contents(self):
    """Checks that each saved episode is one of Catch: the ball falls, and the paddle does what the actions say."""
    folder, steps = os.path.join(self.folder, 'replay'), catch.CELLS - 1
    contract = json.loads(pathlib.Path(folder, 'replay.json').read_text(encoding='utf-8'))
    protocol = {field.name for field in dataclasses.fields(atari57_protocol.Protocol)}
    self.assertEqual(contract['settings'].keys(), {'levels', 'num_actions', *protocol})
    replay = replay_port.make_replay(contract | {'unroll_length': steps}, ops.unique_name('replay'))
    replay.restore(os.path.join(folder, 'replay'))
    number = replay.statistics().episodes
    self.assertGreater(number * steps, 0.9 * contract['replay_capacity'])
    keys = range(replay.statistics().inserted_episodes - number, replay.statistics().inserted_episodes)
    rows = [values.numpy() for values in replay.next(np.array(keys), np.zeros([number], np.int64), 0).rows]
    # The components of an Unroll in their order, of which some are left out; see stored_unrolls.py.
    _, _, reward, _, done, _, _, pixels, action, *_ = rows
    np.testing.assert_array_equal(done.T, [[True, *[False] * (steps - 1), True]] * number)
    cells = pixels[:-1, :, ::pixels.shape[2] // catch.CELLS, ::pixels.shape[3] // catch.CELLS, 0] > 0
    np.testing.assert_array_equal(cells.sum(axis=(2, 3)), 2)
    ball, paddle = cells[0, :, 0].argmax(axis=-1), catch.CELLS // 2
    for step in range(steps):
      np.testing.assert_array_equal(cells[step, :, step].argmax(axis=-1), ball)
      np.testing.assert_array_equal(cells[step, :, -1].argmax(axis=-1), paddle)
      paddle = np.clip(paddle + action[step + 1] - 1, 0, catch.CELLS - 1)
    np.testing.assert_array_equal(reward[-1], np.where(ball == paddle, 1, -1))


class ResumeTest(absltest.TestCase):

  def test_regression_the_address_of_the_replay_may_change(self):
    """A sweep that is resumed has another port."""
    self.assertIn('shared_replay', settings.free_settings(configs.LaserConfig()))


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
