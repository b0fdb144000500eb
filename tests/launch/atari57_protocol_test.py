"""Tests of the protocol of Atari."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.environments import atari
from scalable_agents.environments import atari57
from scalable_agents.launch import atari57_protocol


class ProtocolTest(parameterized.TestCase):

  def test_defaults_are_the_papers(self):
    training = atari57_protocol.Protocol().environments(('pong',), training=True)
    self.assertEqual(training, {'atari': {
        'action_repeats': 4, 'max_pooled_frames': 2, 'noop_max': 30, 'episode_end_on_life_loss': True,
        'full_action_set': False, 'sticky_actions': 0., 'max_episode_frames': 108_000}})
    atari.AtariSettings(**training['atari'])

  def test_an_episode_of_a_test_ends_with_the_game(self):
    settings = atari57_protocol.Protocol().environments(('pong',), training=False)['atari']
    self.assertFalse(settings['episode_end_on_life_loss'])

  def test_several_games_have_all_actions(self):
    settings = atari57_protocol.Protocol().environments(atari57.LEVELS, training=True)['atari']
    self.assertTrue(settings['full_action_set'])

  def test_settings_arrive(self):
    protocol = atari57_protocol.Protocol(action_repeats=1, noop_max=0, episode_end_on_life_loss=False,
                                         full_action_set=True, sticky_actions=True, max_episode_frames=1000)
    self.assertEqual(protocol.environments(('pong',), training=True), {'atari': {
        'action_repeats': 1, 'max_pooled_frames': 1, 'noop_max': 0, 'episode_end_on_life_loss': False,
        'full_action_set': True, 'sticky_actions': 0.25, 'max_episode_frames': 1000}})

  @parameterized.parameters(
      ('action_repeats', 0, '--action_repeats=0: want a whole number from 1 to 1000'),
      ('max_episode_frames', -1, '--max_episode_frames=-1: want a whole number from 1 to 1000000000'),
      ('noop_max', -1, '--noop_max=-1: want a whole number from 0 to 100000'),
      ('max_episode_frames', 20, '--noop_max: want an integer in [0, max_episode_frames = 20), got 30'))
  def test_bad_values_are_named(self, name, value, message):
    with self.assertRaises(ValueError) as caught:
      dataclasses.replace(atari57_protocol.Protocol(), **{name: value}).validate(('pong',))
    self.assertEqual(str(caught.exception), message)

  def test_regression_other_tasks_have_no_emulator_whose_settings_could_be_wrong(self):
    atari57_protocol.Protocol(max_episode_frames=20).validate(('catch',))

  def test_levels_of_lab_are_not_played(self):
    with self.assertRaisesRegex(ValueError, '^--level_name: rooms_watermaze is a level of DeepMind Lab, .*_dmlab30. An '
                                r'agent of your own needs a preset with its protocol \(docs/agents.md\)$'):
      atari57_protocol.Protocol().validate(('pong', 'rooms_watermaze'))
    atari57_protocol.Protocol().validate(('catch', 'gymnasium:CartPole-v1'))

  def test_every_setting_is_explained(self):
    atari57_protocol.Protocol(noop_max=0).validate(('pong',))
    for field in dataclasses.fields(atari57_protocol.Protocol):
      self.assertRegex(field.metadata['help'], r'.{15,}\.$', field.name)


if __name__ == '__main__':
  absltest.main()
