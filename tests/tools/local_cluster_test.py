"""Tests of clusters on this machine, with the real binary and with small programs that fail on purpose."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.agents import registry
from scalable_agents.processes import free_ports
from scalable_agents.processes import python_path
from scalable_agents.records import errors
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.tests.training import training
from scalable_agents.tools import local_cluster

_CATCH = ('--level_name=catch', '--torso=shallow', '--batch_size=4', '--num_environments=4',
          '--num_environment_workers=1', '--log_interval_seconds=0.5')

# --plans has what each process does in each of its lives. Actor hosts exit when there is a file `over`.
_PROGRAM = '''
import json, os, psutil, signal, sys, time
flags = dict(argument[2:].split('=', 1) for argument in sys.argv[1:])
folder, plans, name = flags['folder'], json.loads(flags['plans']), flags['job_name'] + '_' + flags['task']
def lives(name):
  file = os.path.join(folder, name)
  return os.path.getsize(file) if os.path.exists(file) else 0
def is_over():
  return os.path.exists(os.path.join(folder, 'over'))
def tell(*unused):
  open(os.path.join(folder, 'over'), 'w').close()
plan = plans[name][lives(name)]
if plan in ('hang', 'wait'):
  signal.signal(signal.SIGINT, tell if plan == 'wait' else signal.SIG_IGN)
if plan == 'stubborn':
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.path.join(folder, name), 'a') as file:
  file.write('1')
while plan in ('refuse', 'die') and not all(map(lives, plans)):  # Waits until all have started.
  time.sleep(0.05)
while plan == 'die alone' and len(psutil.Process(os.getppid()).children()) > 1:
  time.sleep(0.05)
if plan == 'refuse':
  sys.exit('error: --torso=tall: want one of shallow, deep')
if plan == 'flags':
  print(*(argument for argument in sys.argv[1:] if not argument.startswith(('--folder', '--plans'))), flush=True)
  plan = 'finish' if 'learner' in name else 'act'
if plan in ('hang', 'wait'):
  print('waiting', flush=True)
  while plan == 'hang' or not is_over():
    time.sleep(0.05)
if plan == 'stubborn':
  time.sleep(1000)
if plan in ('die', 'die alone'):
  os.kill(os.getpid(), signal.SIGKILL)
if plan == 'fail':
  print('a learning rate too high', flush=True)
  sys.exit('error: update 7 was not finite')
if plan == 'finish':  # Waits until all are in their last lives.
  while any(lives(name) < len(lot) for name, lot in plans.items()):
    time.sleep(0.05)
  tell()
if plan == 'act':
  while not is_over():
    time.sleep(0.05)
'''
_LAUNCHER = f'''
import json, sys
from scalable_agents.tools import local_cluster
from scalable_agents.processes import free_ports
folder, plans = sys.argv[1:]
config = local_cluster.LocalClusterConfig(learners=len(json.loads(plans)) - 1, actors=1)
local_cluster.Cluster([sys.executable, '-c', {_PROGRAM!r}], config, ['--plans=' + plans, '--folder=' + folder],
                      sys.stdout).run()
'''


def _binary(logdir, *flags):
  """Starts a cluster and returns its launcher."""
  return training.Training(logdir, *flags, program=('-m', local_cluster.__name__))


def _everybody(process):
  """Returns all processes of a cluster except the launcher."""
  with contextlib.suppress(psutil.NoSuchProcess):
    return psutil.Process(process.pid).children(recursive=True)
  return []  # It has ended.


class BinaryTest(parameterized.TestCase):

  def test_trains_to_the_end_and_nothing_is_left(self):
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    frames = 4000
    with _binary(logdir, '--agent=impala_atari57', '--learners=1', '--actors=1', '--', *_CATCH,
                 f'--total_environment_frames={frames}') as run:
      run.wait_until(lambda: training.rows(logdir), 'a row')
      everybody = _everybody(run.process)
      code, _ = run.end()
      screen = run.screen()
    self.assertEqual(code, 0, screen)
    self.assertEmpty(training.still_alive(everybody))
    self.assertRegex(screen, r'(?m)^learner_0: 4,\d+ frames trained, see ')
    rows = training.rows(logdir)
    self.assertRegex(screen, '(?m)^actor_0: the learner has ended the run$')
    self.assertNotIn('killed', screen)
    for line in screen.splitlines():
      self.assertRegex(line, '^(learner_0|actor_0): ')
    self.assertGreaterEqual(rows[-1]['environment_frames'], frames)  # All are actors': the learner has no environments.

  @parameterized.parameters(
      (['--agent=ape_x_atari57'], '--agent=ape_x_atari57: want module:NAME or one of ' + ', '.join(registry.PRESETS)),
      (['--learners=0'], '--learners=0: want a whole number from 1 to 1024'),
      (['--learner_environments=-1'], '--learner_environments=-1: want a whole number from 0 to 10000'),
      (['--actors=0'], '--actors=0: want at least 1, one for each learner, or fewer with --learner_environments'),
      (['--learners=3'], '--actors=2: want at least 3, one for each learner, or fewer with --learner_environments'),
      (['--actors=-1', '--learner_environments=4'],
       '--actors=-1: want a whole number from 0 to 1024'),
      (['--torso', 'deep'], 'deep: no such argument; flags begin with -- (--help shows them)'),
      (['--', '--task=3'], '--task=3: this flag cannot be the same for every process of a cluster: leave it out, '
       'or give --logdir before the --'),
      (['--', '--logdir=here'], '--logdir=here: this flag cannot be the same for every process of a cluster: '
       'leave it out, or give --logdir before the --'))
  def test_bad_input_is_one_line(self, flags, wanted):
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    done = subprocess.run([sys.executable, '-m', local_cluster.__name__, f'--logdir={logdir}', *flags],
                          env=python_path.environment(), text=True, capture_output=True, check=False)
    self.assertEqual((done.returncode, done.stdout, done.stderr), (1, '', f'error: {wanted}\n'))
    self.assertFalse(os.path.exists(logdir))


class ClusterTest(signal_handlers.LauncherTestCase):

  def _run(self, plans, **settings):
    """Runs processes with these plans for their lives. Returns the lines of output."""
    count = lambda job: sum(name.startswith(job) for name in plans)
    config = local_cluster.LocalClusterConfig(learners=count('learner'), actors=count('actor'), **settings)
    cluster = local_cluster.Cluster(
        [sys.executable, '-c', _PROGRAM], config, [f'--plans={json.dumps(plans)}', f'--folder={self.folder}'],
        self.stream)
    try:
      cluster.run()
    finally:
      self.assertEmpty(psutil.Process().children())
    for name, lot in plans.items():
      self.assertEqual(os.path.getsize(os.path.join(self.folder, name)), len(lot), name)
    return self.stream.getvalue().splitlines()

  def test_who_gets_which_flags(self):
    lines = self._run({'learner_0': ['flags'], 'actor_0': ['flags']}, logdir='there', learner_environments=3)
    address = re.search(r'127\.0\.0\.1:\d+', lines[0])[0]
    logdir = os.path.join(os.getcwd(), 'there')
    self.assertCountEqual(lines, [
        f'learner_0: --job_name=learner --task=0 --learner_addresses={address} --logdir={logdir} --num_environments=3',
        f'actor_0: --job_name=actor --task=0 --learner_addresses={address}'])

  @parameterized.parameters('die', 'refuse')
  def test_learners_are_started_again_together(self, end_of_the_other):
    lines = self._run({'learner_0': ['die', 'finish'], 'learner_1': [end_of_the_other, 'finish'], 'actor_0': ['act']})
    self.assertLen(lines, 1)
    self.assertRegex(lines[0], '^learner_[01] ended by SIGKILL: all learners are started again$')

  def test_actors_that_had_been_told_of_the_end_are_started_again_too(self):
    lines = self._run({'learner_0': ['die alone', 'finish'], 'actor_0': ['leave', 'act']})
    self.assertEqual(lines, ['learner_0 ended by SIGKILL: it is started again'])

  def test_a_learner_that_hangs_without_the_other_is_killed(self):
    with mock.patch.object(local_cluster, '_LEAVING_SECONDS', 0.5):
      lines = self._run({'learner_0': ['die', 'finish'], 'learner_1': ['hang', 'finish'], 'actor_0': ['act']})
    self.assertIn('learner_0 ended by SIGKILL: all learners are started again', lines)

  def test_a_learner_that_fails_is_started_again_and_the_actors_wait_for_it(self):
    lines = self._run({'learner_0': ['fail', 'finish'], 'actor_0': ['act']})
    self.assertEqual(lines, ['learner_0: a learning rate too high',
                             'learner_0 ended with exit code 1 (update 7 was not finite): it is started again'])

  def test_an_actor_that_leaves_is_let_go(self):
    self.assertEmpty(self._run({'learner_0': ['finish'], 'actor_0': ['leave'], 'actor_1': ['die', 'act']})[1:])

  def test_a_learner_that_keeps_dying_ends_all(self):
    with self.assertRaisesRegex(errors.UserError, '^learner_0 is not started again: it ended 3 times in a row within '
                                                  '60 s of its start, the last time by SIGKILL$'):
      self._run({'learner_0': ['die', 'die', 'die'], 'actor_0': ['act']})

  def test_without_an_actor_that_keeps_dying_the_others_go_on(self):
    lines = self._run({'learner_0': ['finish'], 'actor_0': ['die', 'die', 'die'], 'actor_1': ['act']})
    self.assertEqual(lines, ['actor_0 ended by SIGKILL: it is started again'] * 2 + lines[2:])
    self.assertLessEqual(len(lines), 3)

  def test_without_any_actor_nothing_goes_on(self):
    plans = {'learner_0': ['wait'], 'actor_0': ['die', 'die', 'die']}
    with self.assertRaisesRegex(errors.UserError, '^actor_0 is not started again: '):
      self._run(plans)

  def test_a_refusal_ends_all_with_its_line(self):
    with self.assertRaisesRegex(errors.UserError, '^actor_1: --torso=tall: want one of shallow, deep$'):
      self._run({'learner_0': ['wait'], 'actor_0': ['act'], 'actor_1': ['refuse']})
    self.assertEqual(self.stream.getvalue(), 'learner_0: waiting\n')

  def test_an_actor_that_does_not_hear_of_the_end_is_killed(self):
    with mock.patch.multiple(local_cluster, _NOTICING_SECONDS=0.2, _LEAVING_SECONDS=1.):
      lines = self._run({'learner_0': ['finish'], 'actor_0': ['stubborn']})
    self.assertEqual(lines, ['actor_0 has not ended: it is killed'])

  def _launch(self, learner='learner_0', **others):
    """Starts a launcher in a process of its own. Returns it and its processes. One learner and an actor host wait."""
    plans = {learner: ['wait'], 'actor_0': ['wait'], **others}
    launcher = subprocess.Popen([sys.executable, '-c', _LAUNCHER, self.folder, json.dumps(plans)],
                                env=python_path.environment(), text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True)
    self.addCleanup(launcher.stdout.close)
    self.addCleanup(launcher.stderr.close)
    self.addCleanup(launcher.wait)
    self.addCleanup(launcher.kill)
    self.assertCountEqual([launcher.stdout.readline() for _ in range(2)],
                          [f'{learner}: waiting\n', 'actor_0: waiting\n'])
    return launcher, _everybody(launcher)

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
  def test_a_signal_ends_all_in_an_orderly_way(self, number):
    launcher, processes = self._launch()
    launcher.send_signal(number)
    printed, _ = launcher.communicate()
    self.assertEqual((launcher.returncode, printed), (0, 'stopped\n'))
    self.assertEmpty(training.still_alive(processes))
    self.assertTrue(os.path.exists(os.path.join(self.folder, 'over')))  # The learner has told the actor host to exit.

  def test_a_signal_while_a_learner_is_waited_for_whose_peer_has_died(self):
    launcher, _ = self._launch('learner_1', learner_0=['die'])
    waiting.wait_until(lambda: len(_everybody(launcher)) == 2)
    launcher.send_signal(signal.SIGINT)
    printed, said = launcher.communicate()
    self.assertEqual(printed, '')
    self.assertEndsWith(said, 'UserError: learner_0 ended by SIGKILL\n')
    self.assertTrue(os.path.exists(os.path.join(self.folder, 'over')))  # The other one had time to end.

  def test_all_leave_when_the_launcher_is_killed(self):
    launcher, processes = self._launch()
    self.assertLen(processes, 2)
    launcher.kill()
    self.assertEmpty(training.still_alive(processes))

  def test_ports_are_free_and_differ(self):
    with mock.patch.object(free_ports, '_PORTS', range(34_500, 34_510)):
      ports = free_ports.find(2)
      self.assertLen(set(ports), 2)
      with socket.socket() as taken:
        taken.bind(('127.0.0.1', ports[0]))
        taken.listen()
        with self.assertRaisesRegex(errors.UserError,
                                    '^only [0-9] ports are free from 34500 to 34509: want 10$'):
          free_ports.find(10)


if __name__ == '__main__':
  absltest.main()
