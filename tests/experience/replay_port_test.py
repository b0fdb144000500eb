"""The replay job: what it takes from agents, what it saves and restores, and what it refuses."""

import json
import os
import pathlib
import shutil
import signal
import socket
import time
import unittest
import uuid

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from scalable_agents.experience import replay_port
from scalable_agents.records import run_directory
from scalable_agents.replay import episode_replay
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.experience import replay_testing
from scalable_agents.tests.suites import ending

_REPORT = dict(agent='x', steps=0, leaving=False, contract=None)
_CONTRACT = dict(rows=[['float32', [2]], ['bool', []]], stacks=[1, 1], done=1, observation=[0],
                 unroll_length=4, replay_capacity=50, settings={})


def setUpModule():
  global _port, _said, _folder  # A process can open only one port, before all else.
  _folder, _said = unittest.enterModuleContext(replay_testing.folder()), []
  with cluster_testing.free_port() as number:
    _port = replay_port.ReplayPort(f'localhost:{number}', _folder, _said.append)


class ReportsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    _said.clear()

  def _send(self, text):
    tf.raw_ops.QueueEnqueueV2(handle=_port._queue, components=[tf.constant(text)])

  def _wait_for_listener(self):
    """Waits until the port has taken all reports, and goes on to take more."""
    name = uuid.uuid4().hex
    self._send(json.dumps(_REPORT | {'agent': name}))
    waiting.wait_until(lambda: any(name in line for line in _said))
    _said[:] = [line for line in _said if name not in line]

  @parameterized.named_parameters(
      ('no_json', b'hello'), ('no_text', b'\xff\xfe{}'), ('nothing', b''), ('a_number', b'3'), ('a_list', b'[{}]'),
      ('deep', b'[' * 20_000 + b']' * 20_000), ('huge', b'{"agent": "' + b'x' * (1 << 17) + b'"}'),
      ('a_field_less', b'{"agent": "x", "steps": 0, "leaving": false}'))
  def test_what_is_no_report_is_ignored(self, text):
    self._send(text)
    self._wait_for_listener()
    self.assertEqual(_said, ['a malformed report was ignored: it is not a JSON object with the fields of a report, or '
                             'it is too long'])

  @parameterized.parameters(
      dict(agent=3), dict(agent=None), dict(steps=-1), dict(steps=1.5), dict(steps=True), dict(steps=float('inf')),
      dict(steps='3'), dict(leaving=0), dict(contract=[]), dict(contract='no'))
  def test_a_report_that_cannot_be_right_is_ignored(self, **wrong):
    self._send(json.dumps(_REPORT | wrong))
    self._wait_for_listener()
    self.assertEqual(_said, ['a malformed report was ignored: a field has another type, or is out of range'])

  def test_the_first_contract_that_describes_a_replay_counts(self):
    self.assertIsNone(_port.statistics())
    wrongs = [{}, {'rows': 5}, {'rows': [['no_such_type', []]]}, {'rows': [['float32', [None]], ['bool', []]]},
              {'replay_capacity': 0}, {'replay_capacity': 1 << 80}, {'replay_capacity': '50'}, {'done': 0},
              {'done': 7}, {'stacks': [1]}, {'stacks': 'no'}, {'unroll_length': -4}]
    for wrong in wrongs:
      with self.subTest(wrong):
        _said.clear()
        self._send(json.dumps(_REPORT | {'contract': _CONTRACT | wrong if wrong else {'rows': []}}))
        self._wait_for_listener()
        self.assertLen(_said, 1)
        self.assertRegex(_said[0], '^a malformed report was ignored: its contract describes no replay: [A-Za-z]+: .+$')
        self.assertIsNone(_port.statistics())
    self.assertFalse(os.path.exists(run_directory.path(_folder, 'replay.json')))
    _said.clear()
    for contract in (_CONTRACT, _CONTRACT | {'replay_capacity': 70}):
      self._send(json.dumps(_REPORT | {'contract': contract}))
      self._wait_for_listener()
      self.assertEqual(_port.statistics().steps, 0)
      self.assertEqual(json.loads(pathlib.Path(_folder, 'replay.json').read_text(encoding='utf-8')), _CONTRACT)
    self.assertEqual(_said, ['a malformed report was ignored: agent x has other settings'])
    self._check_nobody_waits_for_strangers()

  def _check_nobody_waits_for_strangers(self):
    """Agents wait for the slowest of those that have agreed to the contract."""
    present = lambda: _port._pace.even(time.monotonic())
    self._send(json.dumps(_REPORT | {'agent': 'known', 'contract': _CONTRACT}))
    self._send(json.dumps(_REPORT | {'agent': 'stranger'}))
    self._send(json.dumps(_REPORT | {'agent': 'other', 'contract': _CONTRACT | {'settings': {'noop_max': 0}}}))
    self._wait_for_listener()
    self.assertIn('known', present())
    self.assertNoCommonElements(present(), ('stranger', 'other'))


class SaveTest(absltest.TestCase):

  def test_what_is_saved_already_is_not_saved_again(self):
    counts = episode_replay.Statistics(*range(1, 11))
    replay = absltest.mock.Mock()
    replay.save.side_effect = lambda file: pathlib.Path(file).touch()
    with absltest.mock.patch.multiple(_port, _replay=replay, _saved=None):
      for statistics, saves in (
          (counts._replace(episodes=0), 0), (counts, 1), (counts, 1), (counts._replace(rows=9), 2)):
        replay.statistics.return_value = statistics
        _port.save()
        self.assertEqual(replay.save.call_count, saves)


class JobTest(replay_testing.TestCase):
  """Replay jobs in processes of their own."""

  def setUp(self):
    super().setUp()
    self.port = self.enterContext(cluster_testing.free_port())
    self.folder = self.enterContext(replay_testing.folder())

  def _job(self, *flags):
    return replay_testing.job(self.port, self.folder, *flags)

  def _check_refused(self, pattern, job=None):
    """Checks that a job says one line and ends."""
    with job or self._job() as job:
      self.assertEqual(job.end()[0], 1)
      self.assertRegex(job.screen(), rf'\Aerror: {pattern}\n\Z')

  def test_saves_at_its_end_and_goes_on_with_what_it_has_saved(self):
    streams = {stream_id: replay_testing.Stream(stream_id, 5 + stream_id) for stream_id in (1, 2)}
    first, steps = 0, 0
    for number in (signal.SIGINT, signal.SIGTERM):
      with self._job() as job:
        agent = self.agent(self.port)
        self.assertEqual(agent.replay.size(), steps)
        for index in range(first, first + 10):
          for stream in streams.values():
            agent.insert(stream, index)
        for seed in range(5):
          replayed = agent.next(seed)
          for i in range(len(replayed.key)):
            replay_testing.check(replayed, i, streams)
        steps = agent.replay.size()
        self.assertEqual(job.end(number)[0], 0, job.screen())
        lines = job.screen().splitlines()
      self.assertEqual(lines[-1], 'stopped; the same command continues')
      self.assertEqual(f'restored from {self.folder}' in lines[0], first > 0)
      first += 10
    own = replay_testing.restored(run_directory.path(self.folder, 'replay'))
    self.assertEqual(own.size(), steps)
    self._check_damage_is_refused()

  def _check_damage_is_refused(self):
    saved = f'{self.folder}_saved'
    shutil.copytree(self.folder, saved)
    contents = pathlib.Path(saved, 'replay').read_bytes()
    middle = len(contents) // 2
    contract = json.loads(pathlib.Path(saved, 'replay.json').read_text(encoding='utf-8'))
    for file, text, reason in (
        ('replay', contents[:middle] + b'?' + contents[middle + 1:], r'\S+/replay: the file of the replay is damaged'),
        ('replay', contents[:middle], r'\S+/replay: the file .*'),
        ('replay.json', b'{"rows": ', 'Expecting value: .*'),
        ('replay.json', b'[]', 'its contract describes no replay: .*'),
        ('replay.json', json.dumps(contract | {'replay_capacity': 0}).encode(), '.* no replay: .* got 4, 0 and 27000'),
        ('replay.json', json.dumps(contract | {'replay_capacity': 800}).encode(), '.* other settings: .*'),
        ('replay.json', None, '.*No such file .*')):
      with self.subTest(reason):
        shutil.rmtree(self.folder)
        shutil.copytree(saved, self.folder)
        path = pathlib.Path(self.folder, file)
        if text is None:
          path.unlink()
        else:
          path.write_bytes(text)
        self._check_refused(rf'{self.folder}: the replay cannot be restored \({reason}\): remove replay and '
                            'replay.json there to begin with an empty replay, or choose another --logdir')
        self.assertEqual(path.read_bytes() if path.exists() else None, text)  # Nothing was overwritten.

  def test_two_jobs_in_one_folder_or_at_one_port_are_refused(self):
    with self._job() as job, cluster_testing.free_port() as other_port:
      agent = self.agent(self.port)
      agent.replay.size()
      self._check_refused(rf'{self.folder} is in use: process \d+ on .* serves the replay there. Stop it or choose '
                          'another --logdir', replay_testing.job(other_port, self.folder))
      self._check_refused(rf'localhost:{self.port}: port {self.port} is in use on this machine \(.*\): another '
                          r'replay\? Stop it, or choose another port in --shared_replay',
                          replay_testing.job(self.port, f'{self.folder}_2/replay'))
      self.assertFalse(os.path.exists(f'{self.folder}_2'))
      agent.replay.size()
      self.assertEqual(job.end(signal.SIGINT)[0], 0, job.screen())

  def test_a_port_of_something_else_is_refused(self):
    with socket.create_server(('127.0.0.1', 0)) as server:
      port = server.getsockname()[1]
      self._check_refused(f'localhost:{port}: port {port} is in use .*', replay_testing.job(port, self.folder))

  @parameterized.parameters(('192.0.2.1', '192.0.2.1 is another machine'), ('x' * 64, 'no such host'))
  def test_an_address_of_another_machine_is_refused(self, host, reason):
    self._check_refused(
        f'--shared_replay={host}:{self.port}: {reason}: start the replay on the machine of that name, or give '
        f'localhost:{self.port}, which opens on all interfaces too', self._job(f'--shared_replay={host}:{self.port}'))
    self.assertFalse(os.path.exists(self.folder))

  def test_a_replay_that_does_not_fit_into_memory_ends_the_job_and_agents_wait(self):
    agent = self.agent(self.port, capacity=10**15)
    with self._job() as job:
      end = waiting.start(agent.replay.size)
      self.assertEqual(job.end()[0], 1)
      lines = job.screen().splitlines()
    self.assertLen(lines, 2)
    self.assertRegex(
        lines[1], "^error: the agents' --replay_capacity=10{15}: a full replay of 1,000,000,000,000,000 agent steps "
        r'takes 19,000,000.0 GB, but the machine has [\d.,]+ GB of memory: --replay_capacity=\d+ would fit, with '
        'another --logdir of the agents and of this replay$')
    self.wait_until_said(agent, f'no replay at localhost:{self.port} for .* s: Connection refused')
    self.assertFalse(end.ended.is_set())
    self.assertFalse(os.path.exists(run_directory.path(self.folder, 'replay.json')))  # Other agents may come next.

  def test_a_save_that_fails_ends_the_job_with_a_line(self):
    with self._job('--checkpoint_interval_seconds=0.2') as job:
      agent, stream = self.agent(self.port), replay_testing.Stream(1, 2)
      agent.replay.size()
      os.mkdir(run_directory.path(self.folder, 'replay.new'))
      waiting.start(agent.insert, stream, 0)  # If the job ends before this agent has reported, the agent waits.
      self.assertEqual(job.end()[0], 1)
      self.assertRegex(job.screen().splitlines()[-1],
                       f'^error: {self.folder}: the replay cannot be saved: .*/replay.new: Is a directory')


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
