"""Tests of the protocol of DeepMind Lab."""

import dataclasses
import os

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.environments import dmlab
from scalable_agents.environments import dmlab30
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.records import settings


class ProtocolTest(parameterized.TestCase):

  @parameterized.parameters((True,), (False,))
  def test_defaults_are_the_papers(self, training):
    environments = dmlab30_protocol.Protocol().environments(dmlab30.LEVELS, training)
    self.assertEqual(dmlab.DmlabSettings(**environments['dmlab']), dmlab.DmlabSettings(
        width=96, height=72, action_repeats=4, action_set='impala', renderer='software', hold_out=not training))

  def test_settings_arrive_and_paths_are_where_the_user_is(self):
    folder = self.create_tempdir().full_path
    protocol = dmlab30_protocol.Protocol(action_repeats=2, action_set='popart', renderer='hardware',
                                         level_cache='maps', dataset_path='images')
    with absltest.mock.patch.dict(os.environ, BUILD_WORKING_DIRECTORY=folder):
      got = protocol.environments(('rooms_watermaze',), training=True)['dmlab']
    self.assertEqual(got, {
        'action_repeats': 2, 'action_set': 'popart', 'renderer': 'hardware', 'hold_out': False,
        'level_cache': os.path.join(folder, 'maps'), 'dataset_path': os.path.join(folder, 'images')})
    dummy = dmlab30_protocol.Protocol(dataset_path='dummy', level_cache='dummy')
    got = dummy.environments(('rooms_watermaze',), training=True)['dmlab']
    self.assertEqual((got['dataset_path'], got['level_cache']), ('dummy', os.path.join(os.getcwd(), 'dummy')))

  @parameterized.parameters(
      ('action_repeats', 0, '--action_repeats=0: want a whole number from 1 to 1000'),
      ('action_set', 'r2d2', '--action_set=r2d2: want one of impala, popart'),
      ('renderer', 'gpu', '--renderer=gpu: want one of software, hardware'),
      ('level_cache', '/dev/null/maps', '--level_cache: /dev/null/maps: compiled maps cannot be kept there: /dev/null: '
       'Not a directory'))
  def test_bad_values_are_named(self, name, value, message):
    with self.assertRaises(ValueError) as caught:
      dataclasses.replace(dmlab30_protocol.Protocol(), **{name: value}).validate(('rooms_watermaze',))
    self.assertEqual(str(caught.exception), message)

  def test_levels_that_need_images_say_so(self):
    with self.assertRaisesRegex(ValueError, '^--level_name: psychlab_arbitrary_visuomotor_mapping: dataset_path: '):
      dmlab30_protocol.Protocol().validate(dmlab30.LEVELS)
    with self.assertRaisesRegex(ValueError, '^--level_name: psychlab_arbitrary_visuomotor_mapping: dataset_path: '
                                '.* has no 0001.png: '):
      dmlab30_protocol.Protocol(dataset_path=self.create_tempdir().full_path).validate(dmlab30.LEVELS)
    with self.assertRaisesRegex(ValueError, '^--level_name: psychlab_arbitrary_visuomotor_mapping: dataset_path: '
                                '/no/such/folder is not a folder: '):
      dmlab30_protocol.Protocol(dataset_path='/no/such/folder').validate(dmlab30.LEVELS)
    dmlab30_protocol.Protocol(dataset_path='dummy').validate((*dmlab30.LEVELS, 'catch'))

  def test_a_level_for_tests_is_not_trained_on(self):
    with self.assertRaisesRegex(ValueError, '^--level_name: rooms_collect_good_objects_test: this level is for'):
      dmlab30_protocol.Protocol().validate(('rooms_collect_good_objects_test',))

  def test_atari_is_not_played(self):
    with self.assertRaisesRegex(ValueError, '^--level_name: pong is an Atari game, whose programs end in _atari57$'):
      dmlab30_protocol.Protocol().validate(('pong',))

  def test_where_maps_and_images_lie_may_change(self):
    self.assertEqual(settings.free_settings(dmlab30_protocol.Protocol), {'renderer', 'level_cache', 'dataset_path'})
    protocol = dmlab30_protocol.Protocol(2, 'popart', 'hardware', 'maps', 'images')
    self.assertEqual(settings.portable(protocol), dmlab30_protocol.Protocol(2, 'popart'))
    plain = dataclasses.replace(protocol, dataset_path='dummy')  # These are other observations.
    self.assertEqual(settings.portable(plain), dmlab30_protocol.Protocol(2, 'popart', dataset_path='dummy'))

  def test_every_setting_is_explained(self):
    for field in dataclasses.fields(dmlab30_protocol.Protocol):
      self.assertRegex(field.metadata['help'], r'.{15,}\.$', field.name)


if __name__ == '__main__':
  absltest.main()
