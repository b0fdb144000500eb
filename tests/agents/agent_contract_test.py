"""Tests that every agent must pass: what an agent does with the runtime. Add a new agent to _AGENTS.

The toy agent (toy_q.py) shows that the runtime does not depend on IMPALA.
"""

import contextlib
import json
import os
import pathlib
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.agents import registry
from scalable_agents.experience import intake as intake_lib
from scalable_agents.launch import atari57_protocol
from scalable_agents.population import population_directory
from scalable_agents.processes import free_ports
from scalable_agents.processes import python_path
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests import source_tree
from scalable_agents.tests.agents import toy_q
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls
from scalable_agents.training import train_loop

_TOY = f'{toy_q.__name__}:TOY_Q'
# By the name of a preset or 'module:NAME': settings that make a run small.
_AGENTS = {
    'impala_atari57': {'torso': 'shallow'},
    'a2c_atari57': {'torso': 'shallow', 'use_lstm': True},
    'a3c_atari57': {'torso': 'shallow', 'use_lstm': True},
    'popart_impala_atari57': {'torso': 'shallow', 'use_pixel_control': True},
    'laser_atari57': {'torso': 'shallow', 'use_lstm': True, 'replay_share': 0.5, 'replay_minimum_size': 10,
                      'replay_capacity': 100, 'trust_region_threshold': 0.5},
    'r2d2_atari57': {'torso': 'shallow', 'burn_in': 1, 'sequence_length': 3, 'sequence_period': 3,
                     'replay_capacity': 100, 'replay_minimum_size': 10, 'samples_per_period': 0.3},
    _TOY: {},
}
# A worker of A3C sends gradients, of one unroll each; see a3c_test.
_LEARN_FROM_UNROLLS = [name for name in _AGENTS if name != 'a3c_atari57']
# The agents of the tests with environments. The other agents share LASER's code there.
_RUN = ('laser_atari57', 'r2d2_atari57', _TOY)
_SPEC = agent_lib.EnvironmentSpec(3, {'pixels': tf.TensorSpec([20, 20, 1], tf.uint8)}, ('catch', 'obey_ball'))
_SMALL = ('--level_name=catch', '--unroll_length=4', '--batch_size=2', '--nolearning_rate_decay',
          '--num_environments=4', '--num_environment_workers=2')


def setUpModule():
  training.configure_tensorflow()


def _definition(name):
  return python_path.load(registry.find(name).agent)


def _flags(name):
  """Returns flags of a small run that ends soon."""
  return (*_SMALL, *(f'--{setting}={value}' for setting, value in _AGENTS[name].items()))


def _inputs(batch, seed):
  random = np.random.RandomState(seed)
  return acting.ActorInput(
      tf.range(batch) + 100, tf.linspace(0., 1., batch), tf.zeros([batch], tf.int32), tf.zeros([batch]),
      tf.ones([batch]), tf.zeros([batch], tf.bool),
      {'pixels': tf.constant(random.randint(256, size=[batch, 20, 20, 1]), tf.uint8)})


def _with_reward(batch, row, value):
  """Returns the batch with another reward in a row of its second unroll."""
  environment = batch.unroll.environment_output
  reward = environment.reward.numpy()
  reward[row, 1] = value
  return batch._replace(unroll=batch.unroll._replace(
      environment_output=environment._replace(reward=tf.constant(reward))))


class NetworkTest(parameterized.TestCase):
  """Tests that need no environments."""

  def _make(self, name, **settings):
    agent = _definition(name)
    config = agent.config(level_name='catch', **_AGENTS[name], **settings)
    agent.validate(config)
    return agent, config, agent.network(_SPEC, config)

  @parameterized.parameters(*_AGENTS)
  def test_is_made_the_same_from_the_same_seed(self, name):
    (_, _, first), (_, _, again), (_, _, other) = (self._make(name, seed=seed) for seed in (1, 1, 2))
    for one, two in zip(first.variables, again.variables, strict=True):
      self.assertEqual(one.name, two.name)
      np.testing.assert_array_equal(one, two)
    self.assertTrue(any(np.any(one != two.numpy()) for one, two in zip(first.variables, other.variables)))
    state = first.initial_state(2)
    for values in tf.nest.flatten(state):
      np.testing.assert_array_equal(values, np.zeros_like(values))

  @parameterized.parameters(*_AGENTS)
  def test_refuses_environments_that_it_is_not_made_for(self, name):
    agent, config, _ = self._make(name)
    with self.assertRaisesRegex(ValueError, 'want '):
      agent.network(agent_lib.EnvironmentSpec(3, {'sound': tf.TensorSpec([4], tf.float32)}, ('catch',)), config)

  @parameterized.parameters(*_AGENTS)
  def test_acts_in_every_way_that_it_says(self, name):
    agent, _, network = self._make(name)
    inputs, state = _inputs(500, seed=0), network.initial_state(500)
    self.assertNotEmpty(agent.evaluation_policies)
    for kind in (acting.TRAINING, *agent.evaluation_policies):
      selection = acting.Selection(kind, 0.5)
      (output, new_state), (again, _), (other, _) = (
          network.step(inputs, state, tf.constant([1, number], tf.int64), selection) for number in (1, 1, 2))
      self.assertEqual(output._fields[0], 'action')
      self.assertEqual((output.action.shape, output.action.dtype), ([500], tf.int32))
      self.assertTrue(np.all((output.action >= 0) & (output.action < 3)))
      np.testing.assert_array_equal(output.action, again.action)
      self.assertEqual(bool(np.all(output.action == other.action)), kind == acting.GREEDY, kind)
      self.assertTrue(inference.is_finite(output))
      tf.nest.assert_same_structure(new_state, state)

  @parameterized.parameters(*_AGENTS)
  def test_publishes_what_it_acts_with_and_nothing_else(self, name):
    """An agent with other parameters must act like the first one when it gets the first one's acting variables."""
    agent, config, network = self._make(name)
    other = self._make(name, seed=2)[2]
    inputs, seed = _inputs(200, seed=0), tf.zeros([2], tf.int64)
    act = lambda which: which.step(inputs, which.initial_state(200), seed)[0]
    for mine, its in zip(other.acting_variables, network.acting_variables, strict=True):
      mine.assign(its)
    tf.nest.map_structure(np.testing.assert_array_equal, act(other), act(network))
    known = {id(variable) for variable in network.variables}
    self.assertContainsSubset({id(variable) for variable in network.acting_variables}, known)
    if name == 'a3c_atari57':  # Its actors also compute gradients.
      return
    random = np.random.RandomState(0)
    before = tf.nest.map_structure(np.array, tf.nest.flatten(act(network)))
    for variable in network.acting_variables:
      value = variable.numpy()
      variable.assign(value + random.normal(size=value.shape))
      changed = [np.any(old != new) for old, new in zip(before, tf.nest.flatten(act(network)), strict=True)]
      self.assertTrue(any(changed), variable.name)
      variable.assign(value)

  @parameterized.parameters(*_LEARN_FROM_UNROLLS)
  def test_learns_and_skips_what_is_not_finite(self, name):
    agent, config, network = self._make(name, learning_rate_decay=False, batch_size=4, unroll_length=5)
    learner = agent.make_learner(network, config)
    experience, batch = self._experience(agent, config, network)
    before = [variable.numpy() for variable in network.trainable_variables]
    metrics, feedback = learner.step(batch)
    experience.update(batch.sample, feedback)
    metrics = learner.read(metrics)
    self.assertContainsSubset({'loss/total', 'grad_norm', 'learning_rate', 'update_skipped', 'policy_lag'}, metrics)
    self.assertEqual((metrics['update_skipped'], int(learner.update_steps)), (0., 1))
    self.assertIsNone(learner.culprit(metrics))
    for old, new in zip(before, network.trainable_variables):
      self.assertTrue(np.any(old != new.numpy()), new.name)
    self.assertContainsSubset({'learning_rate'}, learner.hyper_parameters)
    # One reward is not finite. That of row 0 is the network's input only; the update before has used it.
    metrics = learner.read(learner.step(_with_reward(batch, 0, np.nan))[0])
    self.assertEqual((metrics['update_skipped'], int(learner.update_steps)), (0., 2))
    before = [variable.numpy() for variable in learner.variables if 'skipped' not in variable.name]
    metrics = learner.read(learner.step(_with_reward(batch, 2, np.nan))[0])
    self.assertEqual((metrics['update_skipped'], int(learner.skipped_updates)), (1., 1))
    self.assertIsInstance(learner.culprit(metrics), str)
    for old, new in zip(before, (v for v in learner.variables if 'skipped' not in v.name)):
      np.testing.assert_array_equal(old, new, new.name)

  def _experience(self, agent, config, network):
    """Returns the agent's experience and the first batch that it makes of random unrolls."""
    number = 64
    batch = self._unroll(network, number)
    sent = lambda index: agent.to_send(unrolls.one(batch, index), config)
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), sent(0))
    intake = intake_lib.Intake(spec, number, 1)
    parameters = parameters_lib.ParameterSnapshot(inference.specs(network.acting_variables))
    parameters.publish(0, list(network.acting_variables))
    make_agent = lambda: agent.network(_SPEC, config)
    experience = agent.make_experience(intake, _SPEC, config, 1, parameters, make_agent)
    self.addCleanup(experience.close)
    for index in range(number):
      intake.put(sent(index))
    while experience.fill():
      pass
    learned, arrived = tf.function(experience.take_batch, autograph=False)()
    self.assertEqual(int(arrived.environment_frames), 5 * experience.unrolls_per_batch)
    return experience, learned

  def _unroll(self, network, batch):
    """Returns a random batch of unrolls with this agent's behaviour output. Each begins a stream."""
    unroll = unrolls.random_unroll(network, dict(_SPEC.observation), steps=5, batch=batch)
    flat = lambda x: tf.reshape(x, [6 * batch, *x.shape[2:]])
    inputs = _inputs(6 * batch, seed=3)._replace(
        observation=tf.nest.map_structure(flat, unroll.environment_output.observation))
    output, _ = network.step(inputs, network.initial_state(6 * batch), tf.constant([1, 1], tf.int64))
    return unroll._replace(agent_output=tf.nest.map_structure(
        lambda x: tf.reshape(x, [6, batch, *x.shape[1:]]), output))


class RunTest(parameterized.TestCase):
  """Tests whole runs in this process, with real environments."""

  def setUp(self):
    super().setUp()
    signal_handlers.restore_after(self)
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def _run(self, name, logdir, *arguments):
    agent = _definition(name)
    training.run_in_this_process(agent, agent.config(), atari57_protocol.Protocol(), *_flags(name),
                                 f'--logdir={self.folder / logdir}', *arguments)

  def _variables(self, logdir):
    """Returns the tensors of the latest checkpoint by name."""
    path = tf.train.latest_checkpoint(self.folder / logdir / 'checkpoints')
    reader = tf.train.load_checkpoint(path)
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map() if key.startswith('learner/')}

  @parameterized.parameters(*_RUN)
  def test_trains_resumes_and_is_evaluated(self, name):
    begin = lambda: self._run(name, 'run', '--synchronous', '--total_environment_frames=160')
    with mock.patch.object(train_loop.Trainer, '_has_finished', lambda trainer: trainer._frames >= 80):
      begin()
    middle, halfway = self._variables('run'), training.rows(self.folder / 'run')[-1]['environment_frames']
    self.assertBetween(halfway, 80, 159)
    begin()  # The run goes on.
    self.assertTrue(any(np.any(middle[name] != value) for name, value in self._variables('run').items()))
    rows = training.rows(self.folder / 'run')
    self.assertEqual([row['learner_steps'] for row in rows], list(range(1, len(rows) + 1)))
    self.assertEqual(rows[-1]['environment_frames'] % 16 + (rows[-1]['environment_frames'] < 160), 0)
    config = run_directory.read_config(str(self.folder / 'run'))
    self.assertEqual(config['agent'], _definition(name).name)
    episodes = [row['episodes'] for row in rows]
    self.assertEqual(episodes[-1], len(training.episodes(self.folder / 'run')))  # Each episode is counted once.
    # Resuming a finished run changes nothing.
    before = self._variables('run')
    begin()
    tf.nest.map_structure(np.testing.assert_array_equal, self._variables('run'), before)
    self._run(name, 'run', '--synchronous', '--total_environment_frames=160', '--mode=test', '--test_num_episodes=5',
              '--test_epsilon=0.25')
    evaluation = json.loads((self.folder / 'run' / 'evaluation.json').read_text())
    policy = _definition(name).evaluation_policies[0]  # The default. NetworkTest acts with the others.
    self.assertEqual(evaluation['protocol']['actions'], 'epsilon 0.25' if policy == acting.EPSILON else policy)
    self.assertLen(evaluation['levels']['catch']['episode_returns'], 5)

  def test_is_in_a_population(self):
    """With a replay and a network that is not published. population_member_test has IMPALA and PopArt."""
    population = ('--population_size=2', '--population_episodes=3', '--population_initial_frames=0', '--synchronous',
                  '--total_environment_frames=160')
    for index in range(2):
      self._run(_TOY, f'member_0{index}', *population, f'--sweep_index={index}', f'--seed={index + 1}')
      logdir = str(self.folder / f'member_0{index}')
      fitness = population_directory.read_fitness(logdir)
      self.assertContainsSubset({'learning_rate'}, fitness.hyper_parameters)
      self.assertNotEmpty(population_directory.read_evolutions(logdir))
      self.assertIn('learning_rate', training.rows(logdir)[-1])
      population_directory.write_fitness(logdir, fitness._replace(fitness=1000.))  # So that the next member copies it.
    self.assertEqual(population_directory.read_evolutions(logdir)[0].parent, 0)


class ClusterTest(parameterized.TestCase):
  """Tests two learners in a process without environments, and an actor host."""

  @parameterized.parameters('laser_atari57', 'r2d2_atari57')  # toy_q_test has the toy agent.
  def test_learns_from_actors_in_another_process(self, name):
    port, = free_ports.find(1)
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    common = (f'--learner_addresses=localhost:{port}', *_flags(name), '--total_environment_frames=200',
              '--log_interval_seconds=0.5', '--num_learners=2')
    with contextlib.ExitStack() as stack:
      _, program, *agent = registry.command(name)
      start = lambda *flags: stack.enter_context(
          training.Training(logdir, *agent, *common, *flags, program=program))
      learner = start('--job_name=learner', '--num_environments=0')
      actor = start('--job_name=actor', '--task=0')
      self.assertEqual(learner.end()[0], 0, learner.screen())
      self.assertEqual(actor.end()[0], 0, actor.screen())
    last = training.rows(logdir)[-1]
    self.assertGreaterEqual(last['environment_frames'], 200)
    self.assertEqual((last['unrolls_missing'], last['unrolls_late']), (0, 0))
    self.assertEqual(last['episodes'], len(training.episodes(logdir)))


class DefinitionTest(parameterized.TestCase):

  def test_an_agent_that_names_no_optimiser_has_adam_with_the_usual_settings(self):
    """Kingma and Ba 2015, section 2."""
    weight, want, first, second = tf.Variable(0.), 0., 0., 0.
    optimizer = toy_q.definition.adam([weight], None)
    for step, gradient in enumerate((1., -3.), 1):
      optimizer.apply([tf.constant(gradient)], tf.constant(0.1))
      first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
      want -= 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step) * first / np.sqrt(second)
      self.assertAlmostEqual(float(weight), want, places=5)

  @parameterized.parameters(*_AGENTS)
  def test_each_sample_of_the_sweep_is_valid(self, name):
    agent = _definition(name)
    for index in range(agent.sweep.num_samples):
      agent.validate(agent.config(sweep_index=index, **agent.sweep.draw(index)))

  def test_every_agent_is_tested(self):
    tested = {registry.find(name).agent for name in _AGENTS}
    self.assertContainsSubset(registry.AGENTS.values(), tested)
    for name, reference in registry.AGENTS.items():
      self.assertEqual(python_path.load(reference).name, name)

  @parameterized.parameters(*registry.PRESETS)
  def test_each_preset_is_a_binary_with_settings_that_its_agent_accepts(self, name):
    preset = registry.find(name)
    agent = python_path.load(preset.agent)
    self.assertIs(type(preset.config), agent.config)
    agent.validate(preset.config)
    self.assertIn(f"train.main('{name}')", source_tree.texts(f'{name}.py')[f'agents/{name}.py'])

  @parameterized.parameters(
      ('impala', "--agent=impala: want module:NAME or one of impala_atari57, "),
      ('no_module:NAME', '--agent=no_module:NAME: want module:NAME or one of .*no module no_module: looked in '),
      (f'{toy_q.__name__}:NONE', "--agent=.*has no attribute 'NONE'"))
  def test_an_unknown_agent_is_said_in_one_line(self, name, message):
    with self.assertRaisesRegex(errors.UserError, f'^{message}'):
      registry.find(name)

  def _in_current_folder(self, file, content):
    folder = self.create_tempdir()
    folder.create_file(file, content=content)
    self.enter_context(mock.patch.object(sys, 'path', list(sys.path)))
    self.enter_context(mock.patch.dict(os.environ, BUILD_WORKING_DIRECTORY=folder.full_path))

  def test_regression_an_agent_is_found_in_the_current_folder(self):
    """The command `scalable-agents` has no current folder in sys.path."""
    for name in ('agent_of_mine', '2026-agent'):
      self._in_current_folder(f'{name}.py', f'from {toy_q.__name__} import TOY_Q as MINE')
      self.assertEqual(registry.find(f'{name}:MINE').config, toy_q.TOY_Q.config())

  def test_regression_an_error_in_the_users_module_keeps_its_traceback(self):
    self._in_current_folder('agent_with_error.py', "MINE = 1 + 'a'")
    with self.assertRaisesRegex(TypeError, 'unsupported operand'):
      registry.find('agent_with_error:MINE')


if __name__ == '__main__':
  absltest.main()
