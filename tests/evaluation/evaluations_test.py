"""Evaluations during training: the newest checkpoint is played beside the training, which goes on whatever happens."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import types

from absl.testing import absltest
import psutil

from scalable_agents.actor import actor_host
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.environments import registry
from scalable_agents.evaluation import evaluation
from scalable_agents.evaluation import evaluation_process
from scalable_agents.evaluation import evaluations
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.processes import background_process
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.tests.evaluation import evaluation_testing
from scalable_agents.tests.training import training
from scalable_agents.training import run_config

_SMALL = ('--level_name=catch', '--torso=shallow', '--unroll_length=5', '--batch_size=4', '--num_environments=4',
          '--num_environment_workers=1', '--log_interval_seconds=0.2', '--checkpoint_interval_seconds=0.5',
          '--evaluation_interval=200', '--evaluation_episodes=3')


class BackgroundProcessTest(absltest.TestCase):

  def test_output_that_is_not_utf_8_is_reported(self):
    reports = []
    process = background_process.BackgroundProcess('base64', lambda *report: reports.append(report))
    process.begin('-d', text='/w==')  # Prints the byte 255.
    process._thread.join()
    self.assertEqual(reports, [('\ufffd', '')])


class _Process:
  """A BackgroundProcess whose end the test decides."""

  def __init__(self, unused_module, on_end):
    self.on_end, self.is_running, self.texts = on_end, False, []

  def begin(self, text):
    self.is_running = True
    self.texts.append(json.loads(text))

  def end(self, output='', reason=''):
    self.is_running = False
    self.on_end(output, reason)


class EvaluationsTest(absltest.TestCase):

  def _evaluations(self, last_frames=0):
    self.said = []
    with absltest.mock.patch.object(evaluations.background_process, 'BackgroundProcess', _Process):
      made = evaluations.Evaluations({}, 100, types.SimpleNamespace(path='/proc/1/fd/3', logdir='run'), last_frames,
                                     self.said.append)
    return made, made._process

  def _begun(self, made, process, frames):
    """Whether an evaluation begins at a checkpoint of so many frames. It is ended with a result."""
    before = len(process.texts)
    made.begin_if_due(frames)
    if process.is_running:
      process.end(json.dumps({'environment_frames': frames}))
    return len(process.texts) > before

  def test_one_is_due_at_the_first_checkpoint_after_each_interval(self):
    made, process = self._evaluations(last_frames=110)
    frames = (0, 150, 190, 210, 290, 299, 500, 510, 599, 600)
    self.assertEqual([at for at in frames if self._begun(made, process, at)], [210, 500, 600])
    self.assertEqual([row['environment_frames'] for row in made.results()], [210, 500, 600])
    self.assertEmpty(made.results())
    self.assertEmpty(self.said)

  def test_one_that_takes_longer_than_the_interval_is_followed_by_the_newest(self):
    made, process = self._evaluations()
    for frames in (100, 200, 300):
      made.begin_if_due(frames)
    self.assertLen(process.texts, 1)
    process.end(json.dumps({'environment_frames': 150}))  # A checkpoint was saved while the process started.
    self.assertFalse(self._begun(made, process, 150))
    self.assertTrue(self._begun(made, process, 350))

  def test_one_that_fails_is_one_line_and_the_next_is_begun_when_it_is_due(self):
    made, process = self._evaluations()
    made.begin_if_due(1_100)
    process.end(reason='exit code -9, see tensorflow.log')
    self.assertEqual(self.said, [
        'no evaluation after 1,100 frames: exit code -9, see tensorflow.log'])
    self.assertFalse(self._begun(made, process, 1_199))
    self.assertTrue(self._begun(made, process, 1_200))

  def test_the_last_checkpoint_is_evaluated_at_the_end_unless_interrupted(self):
    made, process = self._evaluations()
    made.finish(90, is_interrupted=lambda: True)
    self.assertEmpty(process.texts)
    waits = []

    def sleep(seconds):
      waits.append(seconds)
      process.end(json.dumps({'environment_frames': 80 + 10 * len(waits)}))

    made.begin_if_due(100)  # It will have read the checkpoint before.
    with absltest.mock.patch.object(evaluations.time, 'sleep', sleep):
      made.finish(100, is_interrupted=lambda: False)
    self.assertEqual([row['environment_frames'] for row in made.results()], [90, 100])

  def test_the_agent_must_have_the_policy(self):
    agent = dataclasses.replace(impala.IMPALA, evaluation_policies=('sampled', 'greedy'))
    with self.assertRaisesRegex(errors.UserError, '^--test_policy=epsilon: want one of'):
      evaluations.request(training.job(
          agent, configs.ImpalaConfig(level_name='catch'), run_config.RunConfig(test_policy='epsilon')))

  def test_requests_have_the_levels_and_the_protocol_of_evaluations(self):
    def request(level, protocol):
      return evaluations.request(training.job(
          impala.IMPALA, configs.ImpalaConfig(level_name=level), run_config.RunConfig(), protocol))
    lab = request('rooms_collect_good_objects_train', dmlab30_protocol.Protocol())
    self.assertEqual(lab['levels'], ['rooms_collect_good_objects_test'])
    self.assertTrue(lab['protocol']['dmlab']['hold_out'])
    game = request('pong', atari57_protocol.Protocol(episode_end_on_life_loss=True))
    self.assertFalse(game['protocol'].get('atari', {}).get('episode_end_on_life_loss', False))

  def test_requests_leave_the_gpu_to_the_learner_and_give_each_lab_a_process(self):
    for level, workers in (('catch', 1), ('catch,rooms_watermaze', 'auto')):
      run = evaluations.request(training.job(
          impala.IMPALA, configs.ImpalaConfig(level_name=level), run_config.RunConfig(inference_device='gpu')))['run']
      self.assertEqual((run['inference_device'], run['num_environment_workers']), ('cpu', workers))


class EvaluationProcessTest(evaluation_testing.EvaluationTestCase):

  def test_plays_what_an_evaluation_of_the_same_checkpoint_plays(self):
    config, run = self.make_run(level='obey_ball,obey_side', use_lstm=True)
    levels = registry.expand(config.level_name)
    request = evaluations.request(training.job(
        impala.IMPALA, config, run_config.RunConfig(logdir=run.logdir, evaluation_episodes=5)))
    request |= {'directory': run.logdir, 'logdir': run.logdir}
    make_host = actor_host.ActorHost
    with absltest.mock.patch.object(evaluation_process.evaluation_results, 'suite_of', list), \
         absltest.mock.patch.object(actor_host, 'ActorHost', side_effect=make_host) as made:
      row = evaluation_process.evaluate(json.loads(json.dumps(request)))
    seed = evaluation.seed_of(config.seed, 1)  # Of the first checkpoint.
    self.assertEqual(row['seed'], seed)
    self.assertEqual([call.args[3] for call in made.call_args_list], [seed, seed + 4])  # Four environments per level.
    stored = self.evaluate(config, run, test_num_episodes=5, num_environments=8)
    self.assertEqual((row['environment_frames'], row['num_episodes'], row['checkpoint'], row['actions']),
                     (12_800, 5, 'ckpt-1', 'sampled'))
    self.assertEqual(row['learner_steps'], stored['protocol']['learner_steps'])
    self.assertSequenceEqual(list(row['levels']), levels)
    for level in levels:
      self.assertLen(row['levels'][level]['episode_returns'], 5)
      self.assertEqual(row['levels'][level].keys(), stored['levels'][level].keys())
    self.assertSequenceEqual(row['suite'], levels)  # It is computed from the results of all levels.

  def test_takes_the_actions_of_an_evaluation_of_the_same_checkpoint(self):
    # Greedy actions are always the same one; sampled ones, and those of a new network, are not.
    config, run = self.make_run(level='obey_side', always=1, bias=1., use_lstm=True)
    request = evaluations.request(training.job(
        impala.IMPALA, config, run_config.RunConfig(logdir=run.logdir, evaluation_episodes=5, test_policy='greedy')))
    row = evaluation_process.evaluate(request | {'directory': run.logdir, 'logdir': run.logdir})
    stored = self.evaluate(config, run, test_num_episodes=5, num_environments=8, test_policy='greedy')
    self.assertEqual(row['actions'], 'greedy')
    self.assertEqual(row['levels']['obey_side']['episode_returns'], stored['levels']['obey_side']['episode_returns'])

  def test_without_a_checkpoint_the_run_is_named(self):
    config, run = self.make_run()
    request = evaluations.request(training.job(impala.IMPALA, config, run))
    empty = self.create_tempdir().full_path
    with self.assertRaisesRegex(errors.UserError, '^runs/catch: there is no checkpoint: train first'):
      evaluation_process.evaluate(request | {'directory': empty, 'logdir': 'runs/catch'})


class TrainingTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.logdir = str(pathlib.Path(self.create_tempdir().full_path) / 'run')

  def _evaluators(self, run):
    """Returns the process that evaluates, once it has lowered its priority, which it does at its start; or []."""
    with contextlib.suppress(psutil.NoSuchProcess):
      return [child for child, words in training.commands(run.process)
              if evaluation_process.__name__ in words and child.nice() == 19]
    return []

  def _wait_for_evaluators(self, run, what):
    found = []
    run.wait_until(lambda: found.extend(self._evaluators(run)) or found, what)
    return found

  def _rows(self):
    return run_rows.read_evaluations(self.logdir) if os.path.exists(self.logdir) else []

  def test_it_survives_the_evaluators_death_and_ends_it_with_the_training(self):
    with training.Training(self.logdir, *_SMALL) as run:
      evaluator, = self._wait_for_evaluators(run, 'an evaluation')
      evaluator.kill()
      run.wait_until(lambda: 'no evaluation after ' in run.screen(), 'its end')
      self.assertIn('exit code -9', run.screen())
      run.wait_until(self._rows, 'a row')
      evaluators = self._wait_for_evaluators(run, 'another evaluation')
      self.assertEmpty(run.kill())
    self.assertEmpty(training.still_alive(evaluators))
    before = self._rows()
    with training.Training(self.logdir, *_SMALL) as run:
      evaluators = self._wait_for_evaluators(run, 'an evaluation after the resume')
      self.assertEqual(run.end(signal.SIGINT)[0], 0, run.screen())
    self.assertEmpty(training.still_alive(evaluators))
    rows = self._rows()
    self.assertEqual(rows[:len(before)], before)
    frames = [row.frames for row in rows]
    self.assertEqual(frames, sorted(set(frames)))

  def test_a_complete_run_ends_with_the_evaluation_of_its_last_checkpoint(self):
    with training.Training(self.logdir, *_SMALL, '--total_environment_frames=400') as run:
      self.assertEqual(run.end()[0], 0, run.screen())
      self.assertRegex(run.screen(), r'evaluation after 400 frames: return -?[\d.]+, 3 episodes per level\n')
    self.assertEqual(self._rows()[-1].frames, 400)
    self.assertTrue(os.path.exists(run_directory.path(self.logdir, run_directory.LEARNING_CURVE)))


if __name__ == '__main__':
  absltest.main()
