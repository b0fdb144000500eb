"""Tests of table 1 of the IMPALA paper: the paper's numbers, and what was measured beside them."""

import json
import os

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.environments import dmlab
from scalable_agents.records import errors
from scalable_agents.tables.papers import throughput_table

_SEEKAVOID, _KEYS = 'seekavoid_arena_01', 'rooms_keys_doors_puzzle'


def _measured(task, setting, name, *speeds, gpus=0, level=''):
  return throughput_table.Measured(
      task, throughput_table.Architecture(setting, name, gpus), level or task, speeds, environments=12, batch_size=8,
      unroll_length=20)


def _rows(measured=()):
  """Returns the rows by (level, setting, architecture, GPUs), as dicts, and the notes."""
  table = throughput_table.table(measured)
  found = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
  return {tuple(row[name] for name in ('level', 'setting', 'architecture', 'GPUs')): row for row in found}, table.notes


class ThroughputTableTest(parameterized.TestCase):

  def test_without_measurements_it_has_all_numbers_of_the_paper(self):
    rows, notes = _rows()
    self.assertLen(rows, 22)
    self.assertLen(notes, 2)
    for key, number, relative in (
        ((_SEEKAVOID, 'single machine', 'A3C 32 workers', '0'), 6_500, 1.),
        ((_KEYS, 'single machine', 'Batched A2C (sync step)', '1'), 5_500, 5_500 / 9_000),
        ((_KEYS, 'single machine', 'IMPALA (dyn. batch) 48 actors', '1'), 24_000, 24_000 / 9_000),
        ((_SEEKAVOID, 'distributed', 'IMPALA (optimised) batch 128', '1'), 250_000, 250_000 / 6_500),
        ((_KEYS, 'distributed', 'IMPALA', '1'), None, None)):
      self.assertEqual(rows[key]['paper: frames/s'].value, number)
      self.assertEqual(rows[key]['paper: relative'].value, relative)
    for row in rows.values():
      self.assertEqual([row[name].value for name in ('here: frames/s', 'here: ±', 'here: relative')], [None] * 3)
      self.assertEqual(row['repeats'], '0')
    self.assertContainsSubset(throughput_table.TASKS, dmlab.LEVELS)

  def test_speeds_are_relative_to_the_first_row_that_was_measured(self):
    rows, notes = _rows([
        _measured(_KEYS, 'single_machine', 'Batched A2C (sync step)', 80., 90., 130., level='stand-in'),
        _measured(_KEYS, 'single_machine', 'IMPALA (dyn. batch) 48 actors', 320., level='stand-in')])
    step = rows[_KEYS, 'single machine', 'Batched A2C (sync step)', '0']
    self.assertEqual([step[name].value for name in ('here: frames/s', 'here: relative', 'paper: relative')],
                     [100., 1., 1.])
    self.assertAlmostEqual(step['here: ±'].value, 700**0.5)
    self.assertEqual(step['repeats'], '3')
    impala = rows[_KEYS, 'single machine', 'IMPALA (dyn. batch) 48 actors', '1']  # The paper's GPU does not matter.
    self.assertEqual([impala[f'here: {name}'].value for name in ('frames/s', '±', 'relative')], [320., None, 3.2])
    self.assertEqual(impala['paper: relative'].value, 24_000 / 5_000)
    self.assertIsNone(rows[_KEYS, 'single machine', 'Batched A2C (sync step)', '1']['here: frames/s'].value)
    self.assertIsNone(rows[_SEEKAVOID, 'single machine', 'Batched A2C (sync step)', '0']['here: frames/s'].value)
    self.assertEqual(notes[-2], 'Here, IMPALA (dyn. batch) 48 actors has 12 environments and batches of 8 unrolls of '
                     '20 agent steps.')
    self.assertEqual(notes[-1], f'{_KEYS} was not measured itself. In its place: stand-in')

  def test_with_a_gpu_sync_step_is_in_the_row_with_one(self):
    rows, _ = _rows([_measured('pong', 'single_machine', 'Batched A2C (sync step)', 5., gpus=2)])
    self.assertLen(rows, 33)
    self.assertEqual([rows['pong', 'single machine', 'Batched A2C (sync step)', gpus]['here: frames/s'].value
                      for gpus in '01'], [None, 5.])
    self.assertIsNone(rows['pong', 'single machine', 'Batched A2C (sync step)', '1']['paper: frames/s'].value)

  def test_a_file_is_read_or_named(self):
    folder = self.create_tempdir().full_path
    measured = [_measured('pong', 'distributed', 'IMPALA (optimised)', 1., 2.)]
    file = os.path.join(folder, 'throughput.json')
    with open(file, 'w', encoding='utf-8') as stream:
      json.dump({'settings': {}, 'measured': [one._asdict() for one in measured]}, stream)
    self.assertEqual(throughput_table.read(file), [measured[0]._replace(frames_per_second=[1., 2.])])
    for text in ('', '[]', '{"measured": 3}', '{"measured": [{"task": "pong"}]}'):
      with open(file, 'w', encoding='utf-8') as stream:
        stream.write(text)
      with self.assertRaisesRegex(errors.UserError, f'^{file}: want throughput.json of `scalable-agents '):
        throughput_table.read(file)
    with self.assertRaisesRegex(errors.UserError, 'No such file'):
      throughput_table.read(os.path.join(folder, 'none'))


if __name__ == '__main__':
  absltest.main()
