"""Tests evaluation through real worker processes: its episodes, its figures, and interrupted evaluations."""

import dataclasses
import fcntl
import glob
import io
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import statistics
import termios
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import imageio_ffmpeg
import numpy as np
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import actor_pool
from scalable_agents.agents import impala
from scalable_agents.environments import registry
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training
from scalable_agents.training import atari57_protocol
from scalable_agents.training import evaluation
from scalable_agents.training import evaluation_results
from scalable_agents.training import run_flags

_ALWAYS = 50.  # Bias of an action's logit with which the policy never takes another action.
_STAY = 1


class _Terminal(io.StringIO):
  """A terminal of 24 x 80 characters that keeps what is written."""

  def __init__(self):
    super().__init__()
    self._ends = pty.openpty()
    termios.tcsetwinsize(self._ends[1], (24, 80))

  def isatty(self):
    return True

  def fileno(self):
    return self._ends[1]

  def close(self):
    if not self.closed:
      for end in self._ends:
        os.close(end)
    super().close()


class _Reacting(io.StringIO):
  """A screen that calls a function when a word appears on it."""

  def __init__(self, word, react):
    super().__init__()
    self._word, self._react = word, react

  def write(self, text):
    written = super().write(text)
    if self._word in text:
      self._react()
    return written


def _catch_return(ball_column) -> float:
  """The return of a paddle that stays in the middle of five columns."""
  return 1. if ball_column == 2 else -1.


def _children() -> set[int]:
  with open(f'/proc/self/task/{os.getpid()}/children', encoding='utf-8') as file:
    return set(map(int, file.read().split()))


class EvaluationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Installs Python's own handler: a shell that runs the tests in the background makes them ignore SIGINT.
    self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

  def _make_run(self, level='catch', always=None, bias=_ALWAYS, **settings):
    """Makes a run directory with a checkpoint. The policy is uniform, or takes only action `always` if it is given."""
    config = impala.ImpalaConfig(level_name=level, torso='shallow', **settings)
    run = run_flags.RunConfig(logdir=self.create_tempdir().full_path, mode='test', num_environments=4,
                              num_environment_workers=2, test_num_episodes=30)
    learner, checkpointer = training.make_run(run.logdir, config)
    weights, biases = (variable for name in ('w', 'b') for variable in learner.agent.trainable_variables
                     if variable.name == f'agent/policy/{name}:0')
    weights.assign(tf.zeros_like(weights))
    if always is not None:
      biases.assign(tf.one_hot(always, biases.shape[0], on_value=bias))
    learner.environment_frames.assign(12_800)
    learner.update_steps.assign(20)
    checkpointer.save()
    return config, run

  def _evaluate(self, config, run, screen=None, protocol=atari57_protocol.Protocol(), **changes):
    levels = registry.expand(config.level_name)
    run = dataclasses.replace(run, **changes)
    with run_directory.open_evaluation(run.logdir, run_directory.read_config(run.logdir)['flags'], ()) as directory:
      return evaluation.evaluate(impala, config, levels, protocol.environments(levels, training=False), run,
                                 directory, screen or io.StringIO())

  def _stored(self, run):
    with open(run_directory.path(run.logdir, run_directory.EVALUATION), encoding='utf-8') as file:
      return json.load(file)

  def test_the_checkpoints_policy_plays_each_environments_first_episodes(self):
    config, run = self._make_run(always=_STAY, seed=7, synchronous=True, unroll_length=3)
    screen = io.StringIO()
    summary = self._evaluate(config, run, screen)
    want = []
    for environment, quota in enumerate([8, 8, 7, 7]):
      balls = np.random.RandomState(2**30 + 7 + environment)  # Training uses no such seed.
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
        'num_actions': 3, 'num_environments': 4, 'environment_restarts': 0, 'seed': 2**30 + 7,
        'environment_frames': 12_800, 'learner_steps': 20, 'atari': None, 'dmlab': None, 'reference_scores': None})
    self.assertEqual(self._stored(run), summary)
    speed = r' of 30 episodes, [\d,]+ frames/s\n'
    self.assertRegex(screen.getvalue(), rf'^(\d+{speed})*30{speed}$')
    self.assertEmpty(_children())

  def test_actions_are_sampled(self):
    # The policy is uniform. A greedy policy would act in the same way for all balls of a column.
    config, run = self._make_run()
    summary = self._evaluate(config, run, test_num_episodes=800, num_environments=8)
    returns = summary['levels']['catch']['episode_returns']
    columns = [np.random.RandomState(2**30 + 1 + environment).randint(5, size=100) for environment in range(8)]
    for column in range(5):
      of_column = {value for value, ball in zip(returns, np.concatenate(columns)) if ball == column}
      self.assertEqual(of_column, {-1., 1.})

  def test_atari_protocol_score_and_video(self):
    config, run = self._make_run('pong')
    path = os.path.join(self.create_tempdir().full_path, 'pong.mp4')
    screen = io.StringIO()
    summary = self._evaluate(config, run, screen, atari57_protocol.Protocol(max_episode_frames=200, noop_max=4),
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
    recorded = re.match(f'recording an episode to {path}\nrecorded: return [-0-9]+, (196|200) frames\n',
                        screen.getvalue())
    frames = imageio_ffmpeg.read_frames(path)
    metadata = next(frames)
    self.assertEqual((metadata['fps'], metadata['size']), (15., (320, 420)))  # 60 frames/s / 4; enlarged twice.
    self.assertLen(list(frames), 1 + int(recorded[1]) // 4)  # The first picture and one per step.

  def test_levels_that_an_evaluation_cut_short_has_finished_are_kept(self):
    sound, slow = (faulty_environments.level(kind) for kind in (faulty_environments.Sound, faulty_environments.Slow))
    config, run = self._make_run(f'{sound},{slow}')
    run = dataclasses.replace(run, num_environment_workers=4)
    file = pathlib.Path(run_directory.path(run.logdir, run_directory.EVALUATION_UNFINISHED))

    keep = evaluation_results.FinishedLevels.keep  # pylint: disable=protected-access

    def keep_and_interrupt(*args):
      keep(*args)
      if file.exists():
        os.kill(os.getpid(), signal.SIGINT)

    # pylint: disable-next=protected-access
    with mock.patch.object(evaluation_results.FinishedLevels, 'keep', keep_and_interrupt):
      with self.assertRaises(KeyboardInterrupt):
        self._evaluate(config, run)
    self.assertNotIn(run_directory.EVALUATION, os.listdir(run.logdir))
    left = json.loads(file.read_text(encoding='utf-8'))
    self.assertEqual(list(left['levels']), [sound])
    evaluated = left['of']['protocol']
    left['levels'][sound]['mean'] = 12.5  # To distinguish it from a level that is played again.
    file.write_text(json.dumps(left), encoding='utf-8')

    screen = io.StringIO()
    summary = self._evaluate(config, run, screen)
    self.assertStartsWith(screen.getvalue(), '1 of 2 levels were finished before\n')
    self.assertEqual({level: result['mean'] for level, result in summary['levels'].items()}, {sound: 12.5, slow: 10.})
    self.assertLen(summary['levels'][slow]['episode_returns'], 30)
    self.assertEqual(self._stored(run), summary)
    self.assertFalse(file.exists())

    # The evaluation was interrupted after the last level and before its own end.
    everything = left | {'levels': left['levels'] | {slow: left['levels'][sound]}}
    file.write_text(json.dumps(everything), encoding='utf-8')
    summary = self._evaluate(config, run)
    self.assertEqual({level: result['mean'] for level, result in summary['levels'].items()}, {sound: 12.5, slow: 10.})
    self.assertFalse(file.exists())

    # Settings such as the folder of the maps do not matter.
    left['of']['protocol'] = {'atari': {'noop_max': 4}}
    file.write_text(json.dumps(left), encoding='utf-8')
    other = {'atari': {'noop_max': 4, 'renderer': 'hardware'}}
    # pylint: disable-next=protected-access
    found = evaluation_results.FinishedLevels(run.logdir, {name: value for name, value in left['of'].items()
                                                    if name != 'protocol'}, other, ('renderer',))
    self.assertEqual(list(found.results), [sound])
    left['of']['protocol'] = evaluated

    # Results of another checkpoint or protocol do not count, nor does a file that cannot be read.
    left['of']['num_episodes'] = 2
    for text, mean in [(json.dumps(left), 12.5), (json.dumps(left)[:200], 10.), ('[]', 10.), *(
        (json.dumps(left | {'of': left['of'] | {name: value}}), 10.)
        for name, value in (('checkpoint', 'ckpt-7'), ('num_episodes', 30), ('seed', 0), ('protocol', {})))]:
      file.write_text(text, encoding='utf-8')
      summary = self._evaluate(config, run, test_num_episodes=2)
      self.assertEqual([result['mean'] for result in summary['levels'].values()], [mean, 10.], text)

  def test_a_recurrent_policy_is_evaluated_and_recorded(self):
    config, run = self._make_run('recall', always=_STAY, use_lstm=True)
    path = os.path.join(self.create_tempdir().full_path, 'recall.gif')
    screen = io.StringIO()
    summary = self._evaluate(config, run, screen, video=path)
    # The policy always recalls a 1.
    cues = [np.random.RandomState(2**30 + 1 + environment).randint(2, size=8) for environment in range(4)]
    cues = np.concatenate([cues[0], cues[1], cues[2][:7], cues[3][:7]])
    self.assertEqual(summary['levels']['recall']['episode_returns'], [1. if cue == 1 else -1. for cue in cues])
    steps = summary['levels']['recall']['episode_lengths'][0]
    _, seconds = imageio_ffmpeg.count_frames_and_secs(path)
    self.assertAlmostEqual(seconds, (steps + 1) / 15, delta=0.05)
    want = summary['levels']['recall']['episode_returns'][0]  # The same episode.
    self.assertIn(f'recorded: return {want:g}, {steps} frames\n', screen.getvalue())

  @parameterized.parameters(('on a terminal', _Terminal), ('elsewhere', io.StringIO))
  def test_progress(self, unused_where, screen_class):
    config, run = self._make_run()
    screen = screen_class()
    self._evaluate(config, run, screen, test_num_episodes=5)
    self.assertIn('5 of 5 episodes', screen.getvalue())

  @parameterized.parameters('episodes', 'recording')
  def test_ctrl_c_leaves_nothing_behind(self, word):
    config, run = self._make_run()
    before = os.listdir(run.logdir)
    folder = self.create_tempdir().full_path
    handler = signal.getsignal(signal.SIGINT)
    screen = _Reacting(word, lambda: os.kill(os.getpid(), signal.SIGINT))
    with self.assertRaises(KeyboardInterrupt):
      self._evaluate(config, run, screen, test_num_episodes=10**6, log_interval_seconds=0.1,
                     video=os.path.join(folder, 'catch.mp4') if word == 'recording' else '')
    self.assertEmpty(_children())
    self.assertEmpty(os.listdir(folder))
    self.assertCountEqual(os.listdir(run.logdir), [*before, '.evaluation_lock'])
    self.assertIs(signal.getsignal(signal.SIGINT), handler)

  def test_regression_a_trainer_beside_may_delete_the_checkpoint_that_was_chosen(self):
    """The trainer deletes it while the environments start."""
    config, run = self._make_run(always=_STAY)
    make_host = actor_host.ActorHost
    checkpoints = run_directory.path(run.logdir, run_directory.CHECKPOINTS)

    def save_and_make_host(*args, **options):
      _, checkpointer = training.make_run(run.logdir, config)
      checkpointer.restore()
      for _ in range(3):
        checkpointer.save()
      return make_host(*args, **options)

    with mock.patch.object(actor_host, 'ActorHost', save_and_make_host):
      summary = self._evaluate(config, run)
    self.assertEqual(checkpoint.latest(checkpoints), os.path.join(checkpoints, 'ckpt-4'))
    self.assertEqual((summary['protocol']['checkpoint'], summary['protocol']['learner_steps']), ('ckpt-1', 20))

  def test_regression_advice_to_delete_a_checkpoint_is_not_given_beside_a_trainer(self):
    config, run = self._make_run()
    checkpoints = run_directory.path(run.logdir, run_directory.CHECKPOINTS)
    training.make_run(run.logdir, config)[1].save(2)
    os.truncate(os.path.join(checkpoints, 'ckpt-2.index'), 10)
    with self.assertRaisesRegex(run_directory.RunDirectoryError, r'ckpt-2 is damaged .*: delete .*ckpt-1'):
      self._evaluate(config, run)
    # Locks the run as a trainer in another process does.
    with open(run_directory.path(run.logdir, '.lock'), 'w', encoding='utf-8') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      lock.write('process 1 on other')
      lock.flush()
      with self.assertRaisesRegex(run_directory.RunDirectoryError,
                                  r'ckpt-2 is damaged .*: process 1 on other trains there: leave its files alone'):
        self._evaluate(config, run)
      with open(os.path.join(checkpoints, 'checkpoint'), 'w', encoding='utf-8'):
        pass
      with self.assertRaisesRegex(run_directory.RunDirectoryError,
                                  'checkpoints/checkpoint is damaged: process 1 on other trains there: leave its'):
        self._evaluate(config, run)

  @parameterized.parameters('moved', 'removed', 'replaced')
  def test_regression_a_directory_that_is_gone_ends_the_evaluation(self, what):
    config, run = self._make_run()
    moved, other = f'{run.logdir}_moved', f'{run.logdir}_other'
    shutil.copytree(run.logdir, other)

    def remove():
      if os.path.exists(other):
        if what == 'removed':
          shutil.rmtree(run.logdir)
        else:
          os.rename(run.logdir, moved)
        if what == 'replaced':
          os.rename(other, run.logdir)

    screen = _Reacting('episodes', remove)
    before = sorted(os.listdir(other))
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{run.logdir} was moved or removed[^\n]*$'):
      self._evaluate(config, run, screen, test_num_episodes=10**6, log_interval_seconds=0.1)
    self.assertEmpty(_children())
    if what == 'replaced':
      self.assertEqual(sorted(os.listdir(run.logdir)), before)
    else:
      self.assertFalse(os.path.exists(run.logdir))

  def test_a_damaged_checkpoint_is_one_line_and_the_evaluation_before_stays(self):
    config, run = self._make_run()
    before = self._evaluate(config, run)
    data, = glob.glob(run_directory.path(run.logdir, run_directory.CHECKPOINTS) + '/*.data*')
    os.truncate(data, 1000)
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'checkpoint .* is damaged'):
      self._evaluate(config, run)
    self.assertEqual(self._stored(run), before)
    self.assertEmpty(_children())

  def test_a_checkpoint_of_another_network_is_refused(self):
    config, run = self._make_run()
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'does not fit'):
      self._evaluate(dataclasses.replace(config, use_lstm=True), run)

  @parameterized.parameters(False, True)
  def test_a_policy_whose_logits_are_not_finite(self, has_video):
    config, run = self._make_run(always=_STAY, bias=np.nan)
    video = os.path.join(self.create_tempdir().full_path, 'a.mp4') if has_video else ''
    with self.assertRaisesRegex(
        errors.UserError, f"^{run.logdir}/.*: the policy's logits are not finite with the parameters of update 20"):
      self._evaluate(config, run, video=video)
    self.assertFalse(os.path.exists(run_directory.path(run.logdir, run_directory.EVALUATION)))
    self.assertEmpty(_children())

  def test_an_environment_whose_rewards_are_not_numbers(self):
    level = faulty_environments.level(faulty_environments.InfiniteReward)
    config, run = self._make_run(level)
    with self.assertRaisesRegex(errors.UserError, f'^{level}: an environment gave rewards that are not finite'):
      self._evaluate(config, run)

  def test_without_a_checkpoint_there_is_nothing_to_evaluate(self):
    config, run = self._make_run()
    logdir = self.create_tempdir().full_path
    run_directory.open_run(logdir, {}, ()).close()
    with self.assertRaisesRegex(errors.UserError, f'^{logdir}: there is no checkpoint to evaluate: train first'):
      self._evaluate(config, run, logdir=logdir)
    self.assertCountEqual(os.listdir(logdir), ['.evaluation_lock', '.lock', 'config.json'])

  def test_what_cannot_be_written_is_said_before_playing(self):
    config, run = self._make_run()
    with self.assertRaisesRegex(errors.UserError, '^--video=/missing/a.mp4: No such file or directory'):
      self._evaluate(config, run, video='/missing/a.mp4')
    with mock.patch.object(os, 'access', return_value=False):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{run.logdir}: no permission to write: '):
        self._evaluate(config, run)

  def test_an_environment_without_pictures_is_one_line(self):
    config, run = self._make_run(faulty_environments.level(faulty_environments.Sound))
    path = os.path.join(self.create_tempdir().full_path, 'sound.mp4')
    with self.assertRaisesRegex(errors.UserError, r'^--video: environment 0 \(gymnasium:\S+\) could not be made: '
                                'ValueError: .*pictures'):
      self._evaluate(config, run, video=path)
    self.assertFalse(os.path.exists(path))

  def test_an_environment_that_cannot_be_made_is_a_users_error(self):
    config, run = self._make_run()
    with self.assertRaisesRegex(errors.UserError, "unknown level 'catsh'"):
      self._evaluate(dataclasses.replace(config, level_name='catsh'), run)

  def test_environments_that_cannot_be_kept_alive_are_a_users_error(self):
    config, run = self._make_run()
    screen = _Reacting('episodes', lambda: [os.kill(worker, signal.SIGKILL) for worker in _children()])
    with mock.patch.object(actor_pool, 'MAXIMUM_SHORT_LIVES', 1):
      with self.assertRaisesRegex(errors.UserError, 'environment worker [01] failed'):
        self._evaluate(config, run, screen, test_num_episodes=10**6, log_interval_seconds=0.1)
    self.assertEmpty(_children())
    self.assertNotIn(run_directory.EVALUATION, os.listdir(run.logdir))

  @parameterized.parameters(('on a terminal', _Terminal), ('elsewhere', io.StringIO))
  def test_a_fault_is_one_line_and_evaluation_goes_on(self, unused_where, screen_class):
    screen = screen_class()
    progress = evaluation._Progress(mock.Mock(), mock.Mock(num_episodes=5), 1., screen)
    with self.assertLogs(level='WARNING') as logs:
      progress.report_fault('environment worker 0 is replaced: ValueError: a reason\nTraceback\n  a line\nand more')
    progress.close()
    self.assertIn('environment worker 0 is replaced: ValueError: a reason\n', screen.getvalue())
    self.assertIn('a line', logs.output[0])

  @parameterized.parameters(0, 1, 2**30, 2**31 - 1)
  def test_seeds_are_fit_for_all_and_not_those_of_training(self, seed):
    self.assertBetween(evaluation.seed_of(seed), 0, 2**31 - 1)
    self.assertEqual(abs(evaluation.seed_of(seed) - seed), 2**30)


class ReportTest(absltest.TestCase):

  def test_report(self):
    result = {'mean': -20.25, 'median': -20., 'human_normalised': 1.2747, 'human_normalised_capped': 1.2747,
              'episode_returns': [-20., -20.5], 'episode_lengths': [3812, 3100]}
    protocol = {'num_episodes': 2, 'environment_frames': 40_960, 'learner_steps': 16}
    without = dict(result, human_normalised=None, human_normalised_capped=None)
    report = lambda **levels: evaluation_results.report({'levels': levels, 'suite': None, 'protocol': protocol})
    self.assertEqual(report(pong=result), '''\
pong: 2 episodes after 40,960 frames of training (16 updates)
  mean return             -20.25
  median return           -20.00
  human-normalised          1.27 %  (of the mean; random 0 %, human 100 %)
  mean length           3,456.00 frames''')
    self.assertEqual(report(catch=without), '''\
catch: 2 episodes after 40,960 frames of training (16 updates)
  mean return             -20.25
  median return           -20.00
  mean length           3,456.00 frames''')

  def test_report_of_several_levels(self):
    result = {'mean': -20.25, 'median': -20., 'human_normalised': 1.2747}
    without = dict(result, human_normalised=None)
    self.assertEqual(evaluation_results.report({
        'levels': {'pong': result, 'catch': without}, 'suite': {'suite_score': 1.3, 'suite_score/mean_capped': 1.2747},
        'protocol': {'num_episodes': 2, 'environment_frames': 40_960, 'learner_steps': 16}}), '''\
2 episodes of each of 2 levels after 40,960 frames of training (16 updates)
level                                             mean      median  normalised
pong                                            -20.25      -20.00      1.27 %
catch                                           -20.25      -20.00
human-normalised over the levels: mean capped 1.27 %''')


if __name__ == '__main__':
  absltest.main()
