"""Tests evaluation through real worker processes: its episodes, its figures, and interrupted evaluations."""

import dataclasses
import io
import json
import os
import pathlib
import re
import signal
import statistics
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import imageio_ffmpeg
import numpy as np

from scalable_agents.actor import actor_host
from scalable_agents.evaluation import evaluation
from scalable_agents.evaluation import evaluation_results
from scalable_agents.evaluation import recording
from scalable_agents.launch import atari57_protocol
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests.evaluation import evaluation_testing
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training

_STAY = 1


def _catch_return(ball_column) -> float:
  """The return of a paddle that stays in the middle of five columns."""
  return 1. if ball_column == 2 else -1.


def _unfinished(run) -> pathlib.Path:
  return pathlib.Path(run_directory.path(run.logdir, run_directory.EVALUATION_UNFINISHED))


class EvaluationTest(evaluation_testing.EvaluationTestCase):

  def test_the_checkpoints_policy_plays_each_environments_first_episodes(self):
    config, run = self.make_run(always=_STAY, seed=7, synchronous=True, unroll_length=3)
    screen = io.StringIO()
    summary = self.evaluate(config, run, screen)
    want = []
    for environment, quota in enumerate([8, 8, 7, 7]):
      balls = np.random.RandomState(evaluation.seed_of(7) + environment)  # Training uses no such seed.
      want += [_catch_return(balls.randint(5)) for _ in range(quota)]
    self.assertIsNone(summary['suite'])
    result = summary['levels']['catch']
    self.assertEqual(result['episode_returns'], want)
    self.assertEqual(result['episode_lengths'], [4] * 30)
    self.assertAlmostEqual(result['mean'], np.mean(want))
    self.assertEqual(result['median'], np.median(want))
    self.assertIsNone(result['human_normalised'])
    self.assertIsNone(result['human_normalised_capped'])
    self.assertEqual(summary['protocol'], {
        'checkpoint': 'ckpt-1', 'num_episodes': 30, 'actions': 'sampled', 'rewards': 'raw', 'frames_per_step': 1,
        'num_actions': 3, 'num_environments': 4, 'environment_restarts': 0, 'seed': evaluation.seed_of(7),
        'environment_frames': 12_800, 'learner_steps': 20, 'atari': None, 'dmlab': None, 'reference_scores': None})
    self.assertEqual(self.stored(run), summary)
    speed = r' of 30 episodes, [\d,]+ frames/s\n'
    self.assertRegex(screen.getvalue(), rf'^acts on the CPU(: the .*)?\n(\d+{speed})*30{speed}$')
    self.assertEmpty(evaluation_testing.children())

  def test_actions_are_sampled(self):
    # The policy is uniform. A greedy policy would act in the same way for all balls of a column.
    config, run = self.make_run()
    summary = self.evaluate(config, run, test_num_episodes=800, num_environments=8)
    returns = summary['levels']['catch']['episode_returns']
    seed = evaluation.seed_of(1)
    columns = [np.random.RandomState(seed + environment).randint(5, size=100) for environment in range(8)]
    for column in range(5):
      of_column = {value for value, ball in zip(returns, np.concatenate(columns)) if ball == column}
      self.assertEqual(of_column, {-1., 1.})

  def test_atari_protocol_score_and_video(self):
    config, run = self.make_run('pong')
    path = os.path.join(self.create_tempdir().full_path, 'pong.mp4')
    screen = io.StringIO()
    summary = self.evaluate(config, run, screen, atari57_protocol.Protocol(max_episode_frames=200, noop_max=4),
                            test_num_episodes=2, num_environments='auto', video=path)
    result = summary['levels']['pong']
    self.assertLen(result['episode_returns'], 2)
    for length in result['episode_lengths']:
      self.assertBetween(length, 196, 200)  # Environment frames, without those of the no-op start.
    mean = statistics.mean(result['episode_returns'])
    score = 100 * (mean - -20.7) / (14.6 - -20.7)
    self.assertEqual(result['mean'], mean)
    self.assertAlmostEqual(result['human_normalised'], score)
    self.assertAlmostEqual(result['human_normalised_capped'], min(score, 100))
    protocol = summary['protocol']
    self.assertEqual((protocol['num_environments'], protocol['frames_per_step'], protocol['num_actions']), (2, 4, 6))
    self.assertEqual(protocol['atari'], {
        'action_repeats': 4, 'max_pooled_frames': 2, 'noop_max': 4, 'episode_end_on_life_loss': False,
        'full_action_set': False, 'sticky_actions': 0., 'max_episode_frames': 200})
    self.assertIn('random_paper', protocol['reference_scores'])
    recorded = re.match('acts on the CPU(?:: the .*)?\n'
                        f'recording an episode to {path}\nrecorded: return [-0-9]+, (196|200) frames\n',
                        screen.getvalue())
    frames = imageio_ffmpeg.read_frames(path)
    metadata = next(frames)
    self.assertEqual((metadata['fps'], metadata['size']), (15., (320, 420)))  # 60 frames/s / 4; enlarged twice.
    self.assertLen(list(frames), 1 + int(recorded[1]) // 4)  # The first picture and one per step.

  def _cut_short(self):
    """Interrupts an evaluation when the first of two levels has finished. Returns its config, run, and the two."""
    sound, slow = (faulty_environments.level(kind) for kind in (faulty_environments.Sound, faulty_environments.Slow))
    config, run = self.make_run(f'{sound},{slow}')
    run = dataclasses.replace(run, num_environment_workers=4)
    keep = evaluation_results.FinishedLevels.keep

    def keep_and_interrupt(*args):
      keep(*args)
      if _unfinished(run).exists():
        os.kill(os.getpid(), signal.SIGINT)

    with mock.patch.object(evaluation_results.FinishedLevels, 'keep', keep_and_interrupt), \
         mock.patch.dict(os.environ, {faulty_environments.STEP_SECONDS: '1'}), self.assertRaises(KeyboardInterrupt):
      self.evaluate(config, run)
    return config, run, sound, slow

  def test_levels_that_an_evaluation_cut_short_has_finished_are_kept(self):
    config, run, sound, slow = self._cut_short()
    file = _unfinished(run)
    self.assertNotIn(run_directory.EVALUATION, os.listdir(run.logdir))
    left = json.loads(file.read_text(encoding='utf-8'))
    self.assertEqual(list(left['levels']), [sound])
    left['levels'][sound]['mean'] = 12.5  # To distinguish it from a level that is played again.
    file.write_text(json.dumps(left), encoding='utf-8')

    screen = io.StringIO()
    summary = self.evaluate(config, run, screen)
    self.assertStartsWith(screen.getvalue(), '1 of 2 levels were finished before\n')
    self.assertEqual({level: result['mean'] for level, result in summary['levels'].items()}, {sound: 12.5, slow: 10.})
    self.assertLen(summary['levels'][slow]['episode_returns'], 30)
    self.assertEqual(self.stored(run), summary)
    self.assertFalse(file.exists())

    # The evaluation was interrupted after the last level and before its own end.
    everything = left | {'levels': left['levels'] | {slow: left['levels'][sound]}}
    file.write_text(json.dumps(everything), encoding='utf-8')
    summary = self.evaluate(config, run)
    self.assertEqual({level: result['mean'] for level, result in summary['levels'].items()}, {sound: 12.5, slow: 10.})
    self.assertFalse(file.exists())

    # Results of another checkpoint do not count.
    left['of']['num_episodes'] = 2
    for of, mean in ((left['of'], 12.5), (left['of'] | {'checkpoint': 'ckpt-7'}, 10.),
                     (left['of'] | {'index': left['of']['index'] + 1}, 10.)):
      file.write_text(json.dumps(left | {'of': of}), encoding='utf-8')
      summary = self.evaluate(config, run, test_num_episodes=2)
      self.assertEqual([result['mean'] for result in summary['levels'].values()], [mean, 10.])

  def test_a_recurrent_policy_is_evaluated_and_recorded(self):
    config, run = self.make_run('recall', always=_STAY, use_lstm=True)
    path = os.path.join(self.create_tempdir().full_path, 'recall.gif')
    screen = io.StringIO()
    summary = self.evaluate(config, run, screen, video=path)
    # The policy always recalls a 1.
    cues = [np.random.RandomState(evaluation.seed_of(1) + environment).randint(2, size=8) for environment in range(4)]
    cues = np.concatenate([cues[0], cues[1], cues[2][:7], cues[3][:7]])
    self.assertEqual(summary['levels']['recall']['episode_returns'], [1. if cue == 1 else -1. for cue in cues])
    steps = summary['levels']['recall']['episode_lengths'][0]
    _, seconds = imageio_ffmpeg.count_frames_and_secs(path)
    self.assertAlmostEqual(seconds, (steps + 1) / 15, delta=0.05)
    want = summary['levels']['recall']['episode_returns'][0]  # The same episode.
    self.assertIn(f'recorded: return {want:g}, {steps} frames\n', screen.getvalue())

  def test_a_video_shows_the_actions_of_the_evaluation(self):
    config, run = self.make_run()
    with mock.patch.object(recording, 'record', side_effect=errors.UserError('enough')) as record, \
         self.assertRaisesRegex(errors.UserError, 'enough'):
      self.evaluate(config, run, video=os.path.join(self.create_tempdir().full_path, 'a.mp4'), test_policy='greedy')
    self.assertEqual(record.call_args.args[1].kind, 'greedy')

  def test_progress_on_a_terminal(self):
    config, run = self.make_run()
    screen = evaluation_testing.Terminal()
    self.evaluate(config, run, screen, test_num_episodes=5)
    self.assertIn('5 of 5 episodes', screen.getvalue())

  @parameterized.parameters('episodes', 'recording')
  def test_ctrl_c_leaves_nothing_behind(self, word):
    config, run = self.make_run()
    before = os.listdir(run.logdir)
    folder = self.create_tempdir().full_path
    handler = signal.getsignal(signal.SIGINT)
    screen = evaluation_testing.Reacting(word, lambda: os.kill(os.getpid(), signal.SIGINT))
    with self.assertRaises(KeyboardInterrupt):
      self.evaluate(config, run, screen, test_num_episodes=10**6, log_interval_seconds=0.1,
                    video=os.path.join(folder, 'catch.mp4') if word == 'recording' else '')
    self.assertEmpty(evaluation_testing.children())
    self.assertEmpty(os.listdir(folder))
    self.assertCountEqual(os.listdir(run.logdir), [*before, '.evaluation_lock'])
    self.assertIs(signal.getsignal(signal.SIGINT), handler)

  def test_ctrl_c_after_the_last_episode_discards_nothing(self):
    config, run = self.make_run()
    screen = evaluation_testing.Reacting('5 of 5 episodes', lambda: os.kill(os.getpid(), signal.SIGINT))
    self.evaluate(config, run, screen, test_num_episodes=5)
    self.assertLen(self.stored(run)['levels']['catch']['episode_returns'], 5)

  def test_regression_a_trainer_beside_may_delete_the_checkpoint_that_was_chosen(self):
    """The trainer deletes it while the environments start."""
    config, run = self.make_run(always=_STAY)
    make_host = actor_host.ActorHost
    checkpoints = run_directory.path(run.logdir, run_directory.CHECKPOINTS)

    def save_and_make_host(*args, **options):
      _, checkpointer = training.make_run(run.logdir, config)
      checkpointer.restore()
      for _ in range(3):
        checkpointer.save()
      return make_host(*args, **options)

    with mock.patch.object(actor_host, 'ActorHost', save_and_make_host):
      summary = self.evaluate(config, run)
    self.assertEqual(checkpoint.latest(checkpoints), os.path.join(checkpoints, 'ckpt-4'))
    self.assertEqual((summary['protocol']['checkpoint'], summary['protocol']['learner_steps']), ('ckpt-1', 20))

  @parameterized.parameters(0, 1, 2**30, 2**31 - 1)
  def test_seeds_are_fit_for_all_and_not_those_of_training(self, seed):
    self.assertBetween(evaluation.seed_of(seed), 2**30, 2**30 + 2**29)  # Training's begin below 2**29.

  def test_the_seed_of_an_evaluation_stays_the_same(self):
    self.assertEqual(evaluation.seed_of(1), 1_303_179_839)

  def test_runs_with_neighbouring_seeds_play_other_episodes(self):
    seeds = [evaluation.seed_of(seed) for seed in range(100)]
    self.assertGreater(np.diff(np.sort(seeds)).min(), 1_000)  # Each environment has the next one.

  def test_regression_evaluations_during_training_play_other_episodes_each_time(self):
    seeds = [evaluation.seed_of(1), *(evaluation.seed_of(1, checkpoint) for checkpoint in range(1, 100))]
    self.assertGreater(np.diff(np.sort(seeds)).min(), 1_000)


if __name__ == '__main__':
  absltest.main()
