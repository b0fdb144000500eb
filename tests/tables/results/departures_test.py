"""Tests which settings of a run differ from the paper's, and that the binaries' defaults do not."""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import configs
from scalable_agents.agents import registry
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.tables.results import departures
from scalable_agents.tables.results import published
from scalable_agents.tables.results import runs
from scalable_agents.tests.tables import binary_flags

_BINARIES = {('impala', 'atari57'): (configs.ImpalaConfig(), atari57_protocol.Protocol()),
             ('impala', 'dmlab30'): (registry.PRESETS['impala_dmlab30'].config, dmlab30_protocol.Protocol()),
             ('a3c', 'atari57'): (configs.A3cConfig(), atari57_protocol.Protocol()),
             ('a3c', 'dmlab30'): (registry.PRESETS['a3c_dmlab30'].config, dmlab30_protocol.Protocol())}


def _defaults(agent):
  """Returns the flags of a run of an agent that was started without flags."""
  return binary_flags.of(*_BINARIES[agent.family, agent.suite])


def _departures(name, protocol=(), **flags):
  """Returns the departures of a run of the agent. A flag of None is missing in the run's config.json."""
  agent = published.AGENTS[name]
  flags = _defaults(agent) | {
      'torso': agent.torso, 'population_size': agent.population, 'total_environment_frames': agent.frames,
      'level_name': {'atari57': 'pong', 'dmlab30': 'rooms_watermaze'}[agent.suite] if agent.experts else agent.suite,
      'learning_rate_decay': agent.population == 1} | flags
  evaluation = runs.Evaluation({}, 0, 0, tuple(protocol))
  run = runs.Run('', {name: value for name, value in flags.items() if value is not None}, evaluation, agent.family)
  return departures.departures(run, agent)


class DeparturesTest(parameterized.TestCase):

  @parameterized.parameters(*published.AGENTS)
  def test_every_setting_is_known_and_no_default_departs(self, name):
    self.assertEmpty(_departures(name))

  @parameterized.parameters(
      ('IMPALA, deep, experts', ()),
      ('IMPALA, deep', ('learning_rate', 'entropy_cost', 'renderer', 'level_cache', 'dataset_path')))
  def test_every_setting_departs_that_is_neither_free_nor_swept(self, name, not_departing):
    shown_otherwise = {'level_name', 'torso', 'use_lstm', 'off_policy_correction', 'population_size', 'num_learners'}
    free = binary_flags.FREE | {*not_departing}
    for setting, value in _defaults(published.AGENTS[name]).items():
      if setting not in shown_otherwise:
        other = value + '_' if isinstance(value, str) else not value if isinstance(value, bool) else value * 1.1 + 1e-5
        self.assertEqual(_departures(name, **{setting: other}), {} if setting in free else {setting: other})

  @parameterized.parameters(
      ('IMPALA, deep', {'learning_rate': 5e-6, 'entropy_cost': 1e-2, 'rmsprop_epsilon': 1e-7}, {}),
      ('IMPALA, deep', {'learning_rate': 1e-2, 'rmsprop_epsilon': 1e-2},
       {'learning_rate': 1e-2, 'rmsprop_epsilon': 1e-2}),
      ('IMPALA, deep', {'reward_transform': 'optimistic_asymmetric'}, {}),
      ('IMPALA-Experts, deep', {'reward_transform': 'abs_one'}, {'reward_transform': 'abs_one'}),
      ('IMPALA, deep', {'clip_gradient_norm': 40.}, {'clip_gradient_norm': 40.}),
      ('IMPALA, deep', {'learning_rate_decay': False}, {'learning_rate_decay': False}),
      ('IMPALA, deep, PBT', {'population_episodes': 50}, {'population_episodes': 50}),
      ('IMPALA, deep, PBT', {'clip_gradient_norm': 40.}, {'clip_gradient_norm': 40.}),
      ('IMPALA, deep, PBT', {'learning_rate_decay': True}, {'learning_rate_decay': True}),
      ('IMPALA, deep', {'dataset_path': 'dummy'}, {'dataset_path': 'dummy'}),
      ('IMPALA, deep, experts', {'learning_rate': 5e-4}, {'learning_rate': 5e-4}),
      ('IMPALA, deep, experts', {'reward_transform': 'optimistic_asymmetric'},
       {'reward_transform': 'optimistic_asymmetric'}),
      ('IMPALA, deep, experts', {'full_action_set': True}, {'full_action_set': True}),
      ('IMPALA, deep, multi-task', {'full_action_set': True}, {}),
      ('IMPALA, deep, multi-task', {'learning_rate': 5e-4, 'rmsprop_epsilon': 0.1, 'clip_gradient_norm': 7.}, {}),
      ('IMPALA, deep, multi-task', {'clip_gradient_norm': 0.}, {'clip_gradient_norm': 0.}),
      ('IMPALA, deep, multi-task', {'population_size': 1, 'learning_rate_decay': True}, {}),
      ('IMPALA, deep, experts', {'total_environment_frames': 1_000_000}, {}),  # It is named as scaled down.
      ('IMPALA, deep, experts', {'total_environment_frames': 10**9}, {'total_environment_frames': 10**9}),
      ('IMPALA, deep, experts', {'replay_share': 0.5, 'action_values': 'one_step'},
       {'replay_share': 0.5, 'action_values': 'one_step'}),
      ('IMPALA, deep, experts', {'replay_share': None, 'replay_capacity': None, 'action_values': None}, {}),
      ('IMPALA, deep, experts', {'parameter_refresh': '5'}, {'parameter_refresh': '5'}),
      ('A3C, deep', {'learning_rate': 5e-6, 'entropy_cost': 1e-2, 'rmsprop_epsilon': 1e-7}, {}),
      ('A3C, deep', {'batch_size': 32}, {'batch_size': 32}),
      ('A3C, deep, experts', {'learning_rate': 5e-4}, {'learning_rate': 5e-4}),
      ('IMPALA, deep, experts', {'vtrace_lambda': None, 'policy_lag': None}, {}),
      ('IMPALA, deep, experts', {'made_up_by_a_later_version': 0.5}, {'made_up_by_a_later_version': 0.5}))
  def test_what_departs(self, name, flags, expected):
    self.assertEqual(_departures(name, **flags), expected)

  def test_a_setting_of_the_evaluation_is_named_once(self):
    found = _departures('IMPALA, deep, experts', protocol=[('noop_max', 0), ('sticky_actions', 0.25)], noop_max=0)
    self.assertEqual(found, {'noop_max': 0, 'sticky_actions': 0.25})


if __name__ == '__main__':
  absltest.main()
