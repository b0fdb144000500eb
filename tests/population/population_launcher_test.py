"""Who is started again and who is not. Members are small programs here.

run_launcher_test.py tests how all end with a signal and with the launcher.
"""

import os
import sys

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.population import population_directory
from scalable_agents.population import population_launcher
from scalable_agents.processes import child_process
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests.processes import signal_handlers

# Does in its first life what --first says, and in later ones what --then says.
_MEMBER = '''
import json, os, signal, sys, time
flags = dict(argument[2:].split('=', 1) for argument in sys.argv[1:])
logdir = flags['logdir']
def write(name, text):
  with open(os.path.join(logdir, name), 'a') as stream:
    stream.write(text)
  return os.path.getsize(os.path.join(logdir, name))
os.makedirs(logdir, exist_ok=True)
plan = flags['first' if write('lives', '1') == 1 else 'then']
if plan == 'refuse':
  print('error: --torso=tall: want one of shallow, deep', file=sys.stderr)
  sys.exit(1)
print('size', flags['population_size'], flush=True)
if plan == 'crash':
  print('error: it has crashed', file=sys.stderr)
  sys.exit(1)
if plan == 'die':
  print('the last wo', end='', flush=True)
  os.kill(os.getpid(), signal.SIGKILL)
if plan == 'wait':
  while True:
    time.sleep(1)
if not os.path.exists(os.path.join(logdir, 'config.json')):
  write('config.json', json.dumps({'flags': {'total_environment_frames': 100}}))
write('metrics.jsonl', json.dumps({'environment_frames': 100 if plan == 'finish' else 60, 'wall_seconds': 1}) + '\\n')
'''


class LauncherTest(signal_handlers.LauncherTestCase):

  def _run(self, *plans, then='finish'):
    """Runs members with these plans. Returns the names of members that were not started again."""
    launcher = population_launcher.launcher(
        [sys.executable, '-c', _MEMBER], self.folder, len(plans),
        lambda index: [f'--first={plans[index]}', f'--then={then}'], self.stream)
    try:
      return launcher.run()
    finally:
      self.assertEmpty(psutil.Process().children())

  def _size(self, index, name):
    """The bytes of a member's file, each of which a life has written."""
    file = os.path.join(self.folder, population_directory.member_name(index), name)
    return os.path.getsize(file) if os.path.exists(file) else 0

  def test_members_run_to_their_ends_and_their_lines_have_their_names(self):
    self.assertEmpty(self._run('finish', 'finish', 'finish'))
    self.assertCountEqual(self.stream.getvalue().splitlines(), [f'member_{index:02}: size 3' for index in range(3)])
    self.assertEqual([self._size(index, 'lives') for index in range(3)], [1, 1, 1])

  @parameterized.parameters(
      ('die', 'by SIGKILL'), ('crash', r'with exit code 1 \(it has crashed\)'), ('halt', 'with exit code 0'))
  def test_a_member_that_ends_too_soon_is_started_again(self, plan, reason):
    self.assertEmpty(self._run('finish', plan))
    self.assertRegex(self.stream.getvalue(), f'(?m)^member_01 ended {reason}: it is started again$')
    self.assertEqual([self._size(index, 'lives') for index in range(2)], [1, 2])

  def test_an_unfinished_line_is_shown(self):
    self._run('die')
    self.assertIn('member_00: the last wo\n', self.stream.getvalue())

  def test_a_member_that_keeps_dying_is_given_up_and_the_others_go_on(self):
    self.assertEqual(self._run('die', 'finish', then='die'), ['member_00'])
    self.assertRegex(self.stream.getvalue(), '(?m)^member_00 is not started again: it ended 3 times in a row within 60 '
                                             's of its start, the last time by SIGKILL$')
    self.assertEqual([self._size(index, 'lives') for index in range(2)], [3, 1])

  def test_long_lives_are_no_reason_to_give_up(self):
    with absltest.mock.patch.object(child_process, '_EARLY_END_SECONDS', 0.):
      launcher = population_launcher.launcher(
          [sys.executable, '-c', _MEMBER.replace("== 1 else 'then'", "< 6 else 'then'")], self.folder, 1,
          lambda index: ['--first=die', '--then=finish'], self.stream)
      self.assertEmpty(launcher.run())
    self.assertEqual(self._size(0, 'lives'), 6)

  def test_another_size_is_refused_before_a_new_member_starts(self):
    member = os.path.join(self.folder, population_directory.member_name(0))
    with run_directory.open_run(member, {'population_size': 2}, ()):
      pass
    with self.assertRaisesRegex(errors.UserError, '^--population_size=3: .*/member_00 is a member of a population of '
                                '2: want --population_size=2, or another --logdir$'):
      self._run('finish', 'finish', 'finish')
    self.assertCountEqual(os.listdir(self.folder), ['member_00'])

  def test_a_refusal_ends_all_with_its_line(self):
    with self.assertRaisesRegex(errors.UserError, '^member_01: --torso=tall: want one of shallow, deep$'):
      self._run('wait', 'refuse', 'wait')
    self.assertNotIn('torso', self.stream.getvalue())
    self.assertEqual(self._size(1, 'lives'), 1)


class SummaryTest(absltest.TestCase):

  def test_the_fittest_is_named(self):
    folder = self.create_tempdir().full_path
    for index, points in enumerate((3., None, 51.25)):
      logdir = os.path.join(folder, population_directory.member_name(index))
      run_directory.open_run(logdir, {}, ()).close()
      if points is not None:
        population_directory.write_fitness(logdir, population_directory.Fitness(
            10_000, points, {'learning_rate': 0.00123, 'entropy_cost': 0.01}))
    self.assertEqual(population_launcher.summary(folder).splitlines(), [
        'member_00: fitness 3.00 at 10,000 frames with learning_rate 0.00123, entropy_cost 0.01',
        'member_01: no fitness yet',
        'member_02: fitness 51.25 at 10,000 frames with learning_rate 0.00123, entropy_cost 0.01',
        f'fittest: {folder}/member_02'])

  def test_without_members_there_is_nothing_to_say(self):
    self.assertEqual(population_launcher.summary(self.create_tempdir().full_path), '')


if __name__ == '__main__':
  absltest.main()
