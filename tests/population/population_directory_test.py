"""What members leave behind is read as it was written, and what is damaged is named."""

import os

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.population import population_directory
from scalable_agents.records import run_directory
from scalable_agents.tests.records import disk_events

_HYPER_PARAMETERS = {'learning_rate': 1.0000000001e-3, 'entropy_cost': 0.1}
_EVOLUTIONS = [population_directory.Evolution(100, -3.5, None, None, _HYPER_PARAMETERS),
               population_directory.Evolution(250, 4.0, 12, 300, _HYPER_PARAMETERS | {'learning_rate': 0.5}),
               population_directory.Evolution(400, 20.0, None, None, _HYPER_PARAMETERS)]


class PopulationDirectoryTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path

  def _file(self, name, text):
    with open(os.path.join(self.folder, name), 'a', encoding='utf-8') as stream:
      stream.write(text)

  @parameterized.parameters((0, 'member_00'), (7, 'member_07'), (23, 'member_23'), (123, 'member_123'))
  def test_names(self, index, name):
    self.assertEqual(population_directory.member_name(index), name)
    self.assertEqual(population_directory.member_index(f'/runs/population/{name}'), index)
    self.assertEqual(population_directory.member_index(f'runs/{name}/'), index)

  @parameterized.parameters('member_1', 'member_007', 'member_\u0660\u0667', 'member_', 'member_01x', 'my_member_01',
                            'member_01/run')
  def test_other_names(self, name):
    self.assertIsNone(population_directory.member_index(name))

  def test_members_are_those_that_have_been_started(self):
    for name in ('member_100', 'member_02', 'member_00', 'member_1', 'best'):
      os.makedirs(os.path.join(self.folder, name))
      self._file(f'{name}/config.json', '{}')
    os.makedirs(os.path.join(self.folder, 'member_03'))
    self.assertEqual(list(population_directory.members(self.folder).items()), [
        (index, os.path.join(self.folder, population_directory.member_name(index))) for index in (0, 2, 100)])
    self.assertEmpty(population_directory.members(os.path.join(self.folder, 'missing')))

  def test_fitness(self):
    self.assertIsNone(population_directory.read_fitness(self.folder))
    for points in (12.25, -1.0):
      fitness = population_directory.Fitness(5000, points, _HYPER_PARAMETERS)
      population_directory.write_fitness(self.folder, fitness)
      self.assertEqual(population_directory.read_fitness(self.folder), fitness)
    self.assertEqual(os.listdir(self.folder), ['fitness.json'])

  @parameterized.parameters(
      '', '{', '[]', '{}', '{"environment_frames": 1, "fitness": "x", "hyper_parameters": {}}',
      '{"environment_frames": 1e999, "fitness": 1, "hyper_parameters": {}}',
      '{"environment_frames": 1, "fitness": Infinity, "hyper_parameters": {}}',
      '{"environment_frames": 1, "fitness": 1' + 400 * '0' + ', "hyper_parameters": {}}',
      '{"environment_frames": 1, "fitness": 1, "hyper_parameters": ' + 10_000 * '[',
      '{"environment_frames": 1, "fitness": 1, "hyper_parameters": {"learning_rate": [1]}}')
  def test_a_damaged_fitness_is_named(self, text):
    self._file('fitness.json', text)
    with self.assertRaisesRegex(run_directory.RunDirectoryError, '^.*/fitness.json(, line 1)? is damaged'):
      population_directory.read_fitness(self.folder)

  def test_evolutions(self):
    self.assertEmpty(population_directory.read_evolutions(self.folder))
    for count, evolution in enumerate(_EVOLUTIONS, start=1):
      with disk_events.recorded() as events:
        population_directory.append_evolution(self.folder, evolution)
      self.assertEqual(events, [('sync', 'evolution.jsonl')])
      self.assertEqual(population_directory.read_evolutions(self.folder), _EVOLUTIONS[:count])

  @parameterized.parameters((99, 0), (100, 1), (399, 2), (400, 3), (10**9, 3))
  def test_evolutions_after_a_checkpoint_are_dropped_and_a_torn_one(self, frames, kept):
    population_directory.drop_evolutions_after(self.folder, frames)  # There is none yet.
    for evolution in _EVOLUTIONS:
      population_directory.append_evolution(self.folder, evolution)
    self._file('evolution.jsonl', '{"environment_frames": 5')
    self.assertEqual(population_directory.read_evolutions(self.folder), _EVOLUTIONS)
    population_directory.drop_evolutions_after(self.folder, frames)
    self.assertEqual(population_directory.read_evolutions(self.folder), _EVOLUTIONS[:kept])
    population_directory.append_evolution(self.folder, _EVOLUTIONS[-1])
    self.assertEqual(population_directory.read_evolutions(self.folder), [*_EVOLUTIONS[:kept], _EVOLUTIONS[-1]])

  def test_a_damaged_evolution_is_named(self):
    population_directory.append_evolution(self.folder, _EVOLUTIONS[0])
    self._file('evolution.jsonl', '{"environment_frames": 5}\n')
    for read in (population_directory.read_evolutions,
                 lambda folder: population_directory.drop_evolutions_after(folder, 1000)):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, '/evolution.jsonl, line 2 is damaged'):
        read(self.folder)

  def test_a_folder_that_is_gone_is_named(self):
    gone = os.path.join(self.folder, 'gone')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, '^.*/gone/evolution.jsonl: '):
      population_directory.append_evolution(gone, _EVOLUTIONS[0])
    with self.assertRaisesRegex(run_directory.RunDirectoryError, '^.*/gone/fitness.json'):
      population_directory.write_fitness(gone, population_directory.Fitness(1, 1.0, {}))


if __name__ == '__main__':
  absltest.main()
