"""Tests of agents/python_api.py and agents/export.py: runs that were saved, and one that is trained."""

import json
import os
import signal
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil
import tensorflow as tf

import scalable_agents
from scalable_agents.actor import acting
from scalable_agents.agents import configs
from scalable_agents.agents import export
from scalable_agents.agents import python_api
from scalable_agents.records import errors
from scalable_agents.tests.training import training

# Acts greedily with an exported agent, without this project.
_ACT = '''
import json, sys
import numpy as np
import tensorflow as tf
agent = tf.saved_model.load(sys.argv[1])
state, action = agent.initial_state(2), tf.zeros([2], tf.int32)
actions = []
for number, vectors in enumerate(json.loads(sys.argv[2])):
  result = agent.step({'vector': tf.constant(vectors, tf.float32)}, action, tf.zeros([2]), tf.fill([2], number == 0),
                      tf.constant([0, 0], tf.int64), state)
  state, action = result['state'], result['action']
  actions.append(action.numpy().tolist())
assert not [name for name in sys.modules if name.startswith('scalable_agents')]
print(json.dumps(actions))
'''

# Trains for very long, and saves only after the first update and at the end.
_TRAIN = '''
import sys
import scalable_agents
scalable_agents.train(
    'impala_atari57', level_name='catch', torso='shallow', logdir=sys.argv[1].removeprefix('--logdir='),
    num_environments=2, batch_size=2, total_environment_frames=10**9, log_interval_seconds=0.1,
    checkpoint_interval_seconds=3600)
'''


class PolicyTest(parameterized.TestCase):

  def _run(self, **settings):
    """Returns the directory of an untrained run with an LSTM, and its agent."""
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    config = configs.ImpalaConfig(**dict(level_name='recall', torso='shallow', use_lstm=True, seed=5) | settings)
    learner, checkpointer = training.make_run(logdir, config)
    learner.environment_frames.assign(1_234)
    checkpointer.save()
    return logdir, learner.agent

  def test_acts_like_the_agent_that_was_saved(self):
    logdir, agent = self._run()
    policy = scalable_agents.load(logdir, selection='greedy')
    self.assertEqual((policy.environment_frames, policy.levels, policy.spec.num_actions), (1_234, ('recall',), 2))
    random = np.random.RandomState(0)
    vectors, rewards = random.randn(9, 3).astype(np.float32), random.randn(9).astype(np.float32)
    action, state, actions = 0, None, [0]
    for step in range(9):
      # A new episode starts at step 4.
      action, state = policy.step({'vector': vectors[step]}, state, rewards[step], done=step == 4)
      actions.append(action)
    is_first = [step in (0, 4) for step in range(9)]
    inputs = acting.ActorInput((), (), *(
        tf.constant(rows)[:, tf.newaxis] for rows in (actions[:-1], rewards, np.zeros(9, np.float32), is_first)),
                               {'vector': tf.constant(vectors[:, np.newaxis])})
    output, _ = agent.unroll(inputs, agent.initial_state(1))
    self.assertEqual(actions[1:], tf.argmax(output.policy_logits[:, 0], axis=-1).numpy().tolist())

  def test_several_environments_are_like_one_each(self):
    logdir, _ = self._run()
    vectors = np.random.RandomState(0).randn(6, 2, 3).astype(np.float32)
    policy, state, together = scalable_agents.load(logdir, selection='greedy'), None, []
    for row in vectors:
      actions, state = policy.step({'vector': row}, state)
      together.append(actions.tolist())
    for environment in range(2):
      state = None
      for row, actions in zip(vectors, together):
        action, state = policy.step({'vector': row[environment]}, state)
        self.assertEqual(action, actions[environment])

  def test_sampled_actions_are_a_function_of_the_seed(self):
    logdir, _ = self._run()
    vector = {'vector': np.ones([64, 3], np.float32)}
    first, second, other = (scalable_agents.load(logdir, seed=seed).step(vector)[0].tolist() for seed in (1, 1, 2))
    self.assertEqual(first, second)
    self.assertNotEqual(first, other)
    self.assertEqual(set(first), {0, 1})

  def test_plays_in_an_environment_of_the_run(self):
    logdir, _ = self._run(level_name='catch', use_lstm=False)
    policy = scalable_agents.load(logdir)
    environment, state = policy.make_environment(seed=3), None
    step, steps = environment.reset(), 0
    while not step.last():
      action, state = policy.step(step.observation, state, step.reward or 0.)
      step, steps = environment.step(action), steps + 1
    self.assertEqual(steps, 4 * policy.spec.observation['pixels'].shape[0] // 20)

  def test_what_does_not_fit_is_one_line(self):
    logdir, _ = self._run()
    policy = scalable_agents.load(logdir)
    with self.assertRaisesRegex(ValueError, r"^observation: want \['vector'\], got \['pixels'\]$"):
      policy.step({'pixels': np.zeros(3)})
    with self.assertRaisesRegex(ValueError, r"^observation: want a dict with \['vector'\], got ndarray$"):
      policy.step(np.zeros(3, np.float32))
    with self.assertRaisesRegex(ValueError, r"^observation 'vector': want shape \(3,\), or with a batch dimension "):
      policy.step({'vector': np.zeros([2, 4])})
    with self.assertRaisesRegex(ValueError, r'^reward: want one value, or shape \(2,\), got shape \(3,\)$'):
      policy.step({'vector': np.zeros([2, 3])}, reward=[0., 1., 2.])
    frames, _ = self._run(level_name='catch')
    for pixels in (0.5, 300, -1, np.nan):  # A user may scale pixels, or forget to.
      with self.assertRaisesRegex(ValueError, r"^observation 'pixels': want uint8, got \w+ with other values$"):
        scalable_agents.load(frames).step({'pixels': np.full([20, 20, 1], pixels)})
    _, state = policy.step({'vector': np.zeros([2, 3])})
    with self.assertRaisesRegex(ValueError, '^done: want one value, '):
      policy.step({'vector': np.zeros([2, 3])}, state, done=[[True, False]])
    with self.assertRaisesRegex(ValueError, '^state: want that of as many environments as .*, 1, got 2$'):
      policy.step({'vector': np.zeros(3)}, state)
    with self.assertRaisesRegex(errors.UserError, '^--test_policy=best: want '):
      scalable_agents.load(logdir, selection='best')
    with self.assertRaisesRegex(errors.UserError, '^--test_epsilon=7.0: want '):
      scalable_agents.load(logdir, selection='epsilon', epsilon=7.)
    with self.assertRaisesRegex(errors.UserError, 'no run has been started there'):
      scalable_agents.load(os.path.dirname(logdir))
    with self.assertRaisesRegex(AttributeError, "has no attribute 'nothing'"):
      _ = scalable_agents.nothing

  def test_an_exported_agent_acts_without_this_project(self):
    logdir, _ = self._run()
    policy, folder = scalable_agents.load(logdir, selection='greedy'), os.path.join(self.create_tempdir(), 'exported')
    export.export(policy, folder)
    vectors = np.random.RandomState(0).randn(5, 2, 3).astype(np.float32)
    state, wanted = None, []
    for row in vectors:
      actions, state = policy.step({'vector': row}, state)
      wanted.append(actions.tolist())
    path = os.pathsep.join(path for path in sys.path if path.endswith('site-packages'))
    done = subprocess.run([sys.executable, '-P', '-c', _ACT, folder, json.dumps(vectors.tolist())], check=False,
                          env=dict(os.environ, PYTHONPATH=path), cwd='/', capture_output=True, text=True)
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(json.loads(done.stdout), wanted)
    with open(os.path.join(folder, export.METADATA), encoding='utf-8') as file:
      metadata = json.load(file)
    self.assertEqual(metadata['observation'], {'vector': {'shape': [3], 'dtype': 'float32'}})
    self.assertEqual((metadata['num_actions'], metadata['environment_frames']), (2, 1_234))
    with self.assertRaisesRegex(errors.UserError, '^--output=.*: it is there already'):
      export.export(policy, folder)
    again = os.path.join(self.create_tempdir(), 'again')
    full = tf.errors.ResourceExhaustedError(None, None, '{{function_node f}} part-0; No space left on device [Op:Save]')
    with mock.patch.object(export.run_directory, 'write_json', side_effect=KeyboardInterrupt), \
         self.assertRaises(KeyboardInterrupt):
      export.export(policy, again)
    self.assertFalse(os.path.exists(again))
    with mock.patch.object(tf.saved_model, 'save', side_effect=full), \
         self.assertRaisesRegex(errors.UserError, f'^--output={again}: part-0; No space left on device$'):
      export.export(policy, again)


  @parameterized.parameters(
      (dict(output='pong.npz', test_policy='greedy'), '--test_policy=greedy: want an --output without .npz: '),
      (dict(output='pong.npz', test_epsilon=0.1), '--test_epsilon=0.1: want an --output without .npz: '),
      (dict(output='pong', precision='int8'), '--precision=int8: want an --output that ends in .npz: '))
  def test_flags_without_an_effect_are_refused(self, flags, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      export.validate(export.ExportConfig(logdir='runs/pong', **flags))
    export.validate(export.ExportConfig(logdir='runs/pong', output=flags['output']))


class TrainTest(absltest.TestCase):

  def test_trains_in_a_process_of_its_own(self):
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    self.assertEqual(scalable_agents.train(
        'impala_atari57', level_name='catch', torso='shallow', logdir=logdir, num_environments=2, batch_size=2,
        use_lstm=True, total_environment_frames=200), logdir)
    policy = scalable_agents.load(logdir)
    self.assertGreaterEqual(policy.environment_frames, 200)
    self.assertTrue(policy.config.use_lstm)
    with self.assertRaisesRegex(python_api.TrainingError, '^exit code 1$'):  # Other hyper-parameters.
      scalable_agents.train('impala_atari57', level_name='catch', logdir=logdir)
    with self.assertRaisesRegex(errors.UserError, '^--agent=nobody: want '):
      scalable_agents.train('nobody')

  def test_the_training_saves_and_ends_when_the_caller_is_interrupted_or_killed(self):
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    for number in (signal.SIGINT, signal.SIGKILL):
      with training.Training(logdir, program=('-c', _TRAIN)) as caller:
        frames = caller.wait_for_rows(5)[-1]['environment_frames']
        processes = psutil.Process(caller.process.pid).children(recursive=True)
        self.assertEqual(caller.end(number)[0], -number)
      self.assertEmpty(training.still_alive(processes))
      self.assertGreaterEqual(scalable_agents.load(logdir).environment_frames, frames)


if __name__ == '__main__':
  absltest.main()
