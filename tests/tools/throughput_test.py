"""Tests of tools/throughput.py: a very small measurement, the commands, and what is refused."""

import contextlib
import dataclasses
import io
import json
import os
import signal
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import registry
from scalable_agents.environments import step_time
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.tables.papers import throughput_table
from scalable_agents.tools import throughput
from scalable_agents.training import run_config

_RUN = {'logdir': 'there', 'log_interval_seconds': 0.5}


class ThroughputTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.output = os.path.join(self.create_tempdir().full_path, 'new')

  def _main(self, **changes):
    """Runs the program. Returns what it prints."""
    config = throughput.ThroughputConfig(output=self.output, **changes)
    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.object(
        run_flags, 'config_from_flags', return_value=config):
      throughput.main()
    return screen.getvalue()

  def test_two_architectures_are_measured_in_windows(self):
    level = f'dm_env:{step_time.__name__}:make?mean_ms=5'
    rows = {name: throughput._ROWS[name] for name in ('Batched A2C (sync step)', 'IMPALA (dyn. batch) 48 actors')}
    settings = dict(level_names=level, repeats=2, seconds=0.2, batch_size=2, unroll_length=2)
    with mock.patch.object(throughput, '_ROWS', rows):
      screen = self._main(**settings)
      self.assertCountEqual(os.listdir(self.output), ['throughput.json', 'table_1.md', 'table_1.csv'])
      measured = throughput_table.read(os.path.join(self.output, 'throughput.json'))
      self.assertEqual([(one.task, one.architecture.name) for one in measured], [(level, name) for name in rows])
      for one, environments in zip(measured, (2, 3), strict=True):
        self.assertLen(one.frames_per_second, 2)
        for speed in one.frames_per_second:  # A step takes at least 5 ms, whatever the machine's pace.
          self.assertBetween(speed, 1e-3, 4 * 200 * environments * 1.5)
      self.assertIn(f'{level}, repeat 2: Batched A2C (sync step) ', screen)
      self.assertIn(
          'IMPALA (dyn. batch) 48 actors has 3 environments and batches of 2 unrolls of 2 agent steps', screen)
      # What is there is not measured again.
      with mock.patch.object(throughput, 'measure') as measure:
        self._main(**settings)
        measure.assert_not_called()
      with self.assertRaisesRegex(errors.UserError, 'was made with other settings: choose another --output'):
        self._main(**settings | {'repeats': 3})

  def test_a_training_that_fails_says_why(self):
    wanted = self.assertRaisesRegex(errors.UserError, 'exit code 1: .*No module named no_such_module')
    folder = self.create_tempdir().full_path
    with wanted, throughput._Training(lambda run: ['no_such_module'], folder, 0.1) as training:
      training.next_rows(0, 1)
    self.assertTrue(training._screen.closed)

  def test_sigterm_ends_the_trainings(self):
    with mock.patch.object(throughput, '_Training', lambda *unused: signal.raise_signal(signal.SIGTERM)):
      with self.assertRaises(SystemExit) as left:
        self._main(experiment='variation')
    self.assertEqual(left.exception.code, 143)

  def test_the_figure_has_a_line_for_each_architecture(self):
    with mock.patch.object(throughput, 'measure', lambda rows, level, config: {
        name: [1., 2.] for name in rows}), mock.patch.object(throughput.drawing, 'save') as save:
      self._main(experiment='variation', mean_ms=7.)
    axes, = save.call_args.args[0].axes
    self.assertLen(throughput.drawing.labelled(axes), 4)
    with open(os.path.join(self.output, 'throughput.json'), encoding='utf-8') as stream:
      stored = json.load(stream)
    self.assertEqual({one['level'] for one in stored['measured']}, {
        f'dm_env:{step_time.__name__}:make?mean_ms=7.0&variation={variation}&has_pixels=false'
        for variation in (0., 0.5, 1.)})

  @parameterized.parameters('pong', 'seekavoid_arena_01')
  def test_the_commands_are_those_of_the_binaries(self, task):
    config = throughput.ThroughputConfig(batch_size=4)
    preset = 'dmlab30' if task in throughput._STAND_INS else 'atari57'
    for name, row in throughput._ROWS.items():
      words = throughput.command(row, throughput._Level(task, task, preset), config, _RUN)
      agent = f'{row.agent}_{preset}'
      if row.setting == 'distributed':
        self.assertEqual(words[:2], ['scalable_agents.tools.local_cluster', f'--agent={agent}'])
        words = words[words.index('--'):]
      else:
        self.assertEqual(['-m', words[0]], registry.command(agent))
      found, values = registry.find(agent), flags.FlagValues()
      for settings in (found.config, found.protocol, run_config.RunConfig()):
        run_flags.define(settings, values)
      self.assertLen(values(['program', *words[1:]]), 1)
      self.assertEqual((values.level_name, values.torso, values.unroll_length), (task, 'shallow', 100))
      self.assertEqual(values.batch_size, 1 if row.agent == 'a3c' else 16 if '128' in name else 4)
      self.assertEqual(values.num_environments, 6 if row.agent == 'impala' else 4)
      self.assertEqual(values.dynamic_batching, name != 'IMPALA 48 actors')

  def test_rows_are_those_of_the_paper(self):
    known = {(one.setting, one.name) for one in throughput_table.ARCHITECTURES}
    self.assertContainsSubset({(row.setting, name) for name, row in throughput._ROWS.items()}, known)
    self.assertContainsSubset(throughput._STAND_INS, throughput_table.TASKS)

  def test_levels_stand_in_for_those_of_deepmind_lab_only(self):
    config = throughput.ThroughputConfig()
    with mock.patch.object(throughput.levels_lib, 'check', side_effect=ImportError('no Lab')):
      self.assertEqual([(one.task, one.preset) for one in throughput._levels(config)],
                       [(task, 'atari57') for task in throughput_table.TASKS])
      with self.assertRaisesRegex(errors.UserError, '^--level_names: no Lab$'):
        throughput._levels(dataclasses.replace(config, level_names='rooms_watermaze'))
    with self.assertRaisesRegex(errors.UserError, "^--level_names: unknown level 'pung'"):
      throughput._levels(dataclasses.replace(config, level_names='pung'))


if __name__ == '__main__':
  absltest.main()
