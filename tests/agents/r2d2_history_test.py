"""Tests of the evaluation with a restricted memory: the LSTM is computed on the last observations only."""

import contextlib
import dataclasses
import functools
import io
import json
import math
import pathlib
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import inference
from scalable_agents.agents import configs
from scalable_agents.agents import r2d2
from scalable_agents.agents import r2d2_history
from scalable_agents.agents import registry
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls

_SMALL = ('--level_name=recall_late', '--burn_in=4', '--sequence_length=4', '--sequence_period=2',
          '--unroll_length=10', '--batch_size=8', '--replay_capacity=500', '--replay_minimum_size=20',
          '--samples_per_period=0.4', '--total_environment_frames=200', '--synchronous')


def setUpModule():
  training.configure_tensorflow()


class RestrictedAgentTest(parameterized.TestCase):

  @parameterized.parameters(0, 1, 2, 4, 20, math.inf)
  def test_acts_on_the_last_observations_only(self, history):
    config = configs.R2d2Config()
    agent = r2d2.Agent(unrolls.environment_spec(), config)
    restricted = r2d2_history.RestrictedAgent(agent, config, history)
    batch, num_rows = 3, 9
    unroll = unrolls.random_unroll(agent.online, steps=num_rows - 1, batch=batch)
    environment = unroll.environment_output
    done = environment.done.numpy()
    done[0] = True
    inputs = [acting.ActorInput(
        tf.range(batch), tf.zeros([batch]), unroll.agent_output.action[t], environment.reward[t],
        environment.discount[t], tf.constant(done[t]), {'vector': environment.observation['vector'][t]})
              for t in range(num_rows)]

    # The values [B, A] of row t if the LSTM begins with zeros at row `first`. If that is after t, it has not seen any.
    values_of = {(t + 1, t): agent.online.head(tf.zeros([batch, 512])).numpy() for t in range(num_rows)}
    for first in range(num_rows):
      state = agent.online.initial_state(batch)
      for t in range(first, num_rows):
        values, state = agent.online.step(inputs[t], state)
        values_of[first, t] = values.numpy()
    state, selection = restricted.initial_state(batch), acting.Selection(acting.EPSILON, 0.)

    @tf.function
    def step(one, state):  # As on a GPU: with more rows, which are not counted.
      padded, size = inference.pad((one, state))
      outputs = restricted.step(*padded, tf.zeros([2], tf.int64), selection)
      return tf.nest.map_structure(lambda tensor: tensor[:size], outputs)

    matches, differences = [], []
    for t in range(num_rows):
      output, state = step(inputs[t], state)
      for b in range(batch):
        episode = np.flatnonzero(done[:t + 1, b])[-1]
        got, whole = values_of[max(episode, t + 1 - min(history, t + 1)), t][b], values_of[episode, t][b]
        self.assertEqual(output.action[b], np.argmax(got))
        matches.append(np.argmax(got) == np.argmax(whole))
        differences.append(abs(got.max() - whole.max()))
        np.testing.assert_allclose(output.value_difference[b], differences[-1], atol=1e-5)
    self.assertEqual(restricted.num_steps, batch * num_rows)
    self.assertEqual(restricted.num_matches, np.sum(matches))
    np.testing.assert_allclose(restricted.value_differences, np.sum(differences), atol=1e-4)
    if history == math.inf or history == 20:
      self.assertTrue(np.all(matches))
    else:
      self.assertGreater(np.sum(differences), 1e-3)


class HistoryConfigTest(parameterized.TestCase):

  def test_histories(self):
    self.assertEqual(r2d2_history.histories_of(r2d2_history.HistoryConfig()), [math.inf, 120, 80, 40, 1, 0])

  @parameterized.parameters('', 'inf,', '-1', '1.5', '10001', 'all')
  def test_refuses_other_histories(self, histories):
    with self.assertRaisesRegex(ValueError, '^--histories=.*: want inf or whole numbers from 0 to 10000'):
      r2d2_history.validate(r2d2_history.HistoryConfig('run', histories))


class ProgramTest(parameterized.TestCase):

  def _main(self, *arguments):
    """Does what the program does in this process. Returns what it prints. Raises errors instead of printing them."""
    flag_values = flags.FlagValues()
    run_flags.define(r2d2_history.HistoryConfig(), flag_values)
    flag_values(['program', *arguments])
    read = functools.partial(run_flags.config_from_flags, flag_values=flag_values)
    with mock.patch.object(run_flags, 'config_from_flags', read), contextlib.redirect_stdout(io.StringIO()) as screen:
      r2d2_history.main()
    return screen.getvalue()

  def test_with_the_whole_history_it_is_the_plain_evaluation(self):
    signal_handlers.restore_after(self)
    logdir = pathlib.Path(self.create_tempdir().full_path) / 'run'
    of_run = f'--logdir={logdir}', '--num_environments=3'
    training.run_preset('r2d2_atari57', *of_run, *_SMALL, '--notf32')
    training.run_preset('r2d2_atari57', *of_run, '--mode=test', '--test_num_episodes=6', '--test_policy=greedy')
    self.addCleanup(tf.config.experimental.enable_tensor_float_32_execution, True)
    tf.config.experimental.enable_tensor_float_32_execution(True)
    evaluation = r2d2_history.evaluation
    with mock.patch.object(evaluation, 'load', wraps=evaluation.load) as load:
      screen = self._main(*of_run, '--num_episodes=6', '--epsilon=0', '--histories=inf,20,1')
    load.assert_called_once()  # All histories have the same checkpoint, even if the run goes on.
    self.assertFalse(tf.config.experimental.tensor_float_32_execution_enabled())  # As in the run.
    plain = json.loads((logdir / 'evaluation.json').read_text())['levels']['recall_late']['episode_returns']
    results = json.loads((logdir / run_directory.RESTRICTED_HISTORY).read_text())['recall_late']
    self.assertEqual(list(results), ['inf', '20', '1'])
    for history in ('inf', '20'):  # No episode is longer than 20 steps.
      self.assertEqual(results[history]['episode_returns'], plain)
      self.assertAlmostEqual(results[history]['mean_return'], np.mean(plain))
      self.assertEqual(results[history]['greedy_match'], 1.)
    self.assertEqual(results['inf']['value_difference'], 0.)
    frames = json.loads((logdir / 'evaluation.json').read_text())['protocol']['environment_frames']
    self.assertEqual([result['environment_frames'] for result in results.values()], [frames] * 3)
    self.assertGreater(results['1']['value_difference'], 0.)
    self.assertIn('recall_late: history       return  greedy match', screen)
    with mock.patch.object(r2d2_history.evaluation, 'play', side_effect=errors.UserError('enough')) as play, \
         self.assertRaisesRegex(errors.UserError, 'enough'):
      self._main(*of_run, '--epsilon=0.25')
    self.assertIn(acting.Selection(acting.EPSILON, 0.25), play.call_args.args)

  @parameterized.parameters(
      ('', (), '--logdir=: want the folder of a run'),
      ('/absent/run', (), '/absent/run: no run has been started there'),
      ('/absent/run', ('--histories=few',), '--histories=few: want inf or whole numbers'))
  def test_bad_input_is_a_users_error(self, logdir, arguments, message):
    with self.assertRaisesRegex(errors.UserError, f'^{message}'):
      self._main(f'--logdir={logdir}', *arguments)

  @parameterized.parameters(
      ('impala_atari57', 'impala', True), ('r2d2_atari57', 'r2d2', False), ('r2d2_atari57', 'a_variant', True))
  def test_other_runs_are_refused(self, name, agent, use_lstm):
    preset = registry.find(name)
    flags_of_run = dataclasses.asdict(preset.config) | dataclasses.asdict(preset.protocol) | {'use_lstm': use_lstm}
    stored = {'agent': agent, 'flags': flags_of_run}
    with mock.patch.object(run_directory, 'read_config', lambda _: stored):
      with self.assertRaisesRegex(errors.UserError, '^/run: want the run of an R2D2 agent with an LSTM$'):
        self._main('--logdir=/run')

  def test_a_level_without_its_images_is_one_line(self):
    preset = registry.find('r2d2_dmlab30')
    flags_of_run = dataclasses.asdict(preset.config) | dataclasses.asdict(preset.protocol) | {
        'level_name': 'psychlab_continuous_recognition', 'dataset_path': '/images/of/the/trainer'}
    with mock.patch.object(run_directory, 'read_config', lambda _: {'agent': 'r2d2', 'flags': flags_of_run}):
      with self.assertRaisesRegex(errors.UserError, '^psychlab_continuous_recognition: dataset_path: this level needs '
                                  r'the images [^\n]*$'):
        self._main('--logdir=/run')
      with self.assertRaisesRegex(errors.UserError, '^/run: '):  # There is no such run.
        self._main('--logdir=/run', '--dataset_path=dummy')


if __name__ == '__main__':
  absltest.main()
