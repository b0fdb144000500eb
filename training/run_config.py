"""The settings of a run that say where and how fast an agent learns."""

import dataclasses
import os
import re

from absl import flags

from scalable_agents.environments import atari57
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

_MAX_TEST_EPISODES = 10_000_000
TEST_POLICIES = ('', 'sampled', 'greedy', 'epsilon')
_MAX_LOG_INTERVAL_SECONDS = 10  # Readers of metrics.jsonl may rely on this limit.
_MAX_INFERENCE_THREADS = 256
_MAX_KERNEL_THREADS = 1_024
_MAX_NICENESS = 19  # See nice(2).


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """The settings that may change when a run is resumed. They say where and how fast an agent learns, not what.

  With other numbers of environments, however, the data are older or newer, and R2D2's actors have other epsilons.
  """

  logdir: str = setting('', 'The run directory, with metrics, checkpoints and curve. If it has a run already, the run '
                            'is resumed. Default: runs/LEVEL_NAME in the current folder.')
  mode: str = setting('train', 'What to do: train or test. test evaluates the run in --logdir.',
                      choices=('train', 'test'))
  xla: str = setting('auto', 'Whether XLA compiles the learner: always, never or auto. auto compiles on a GPU, but not '
                             'on a CPU, where it is not faster.', choices=('auto', 'always', 'never'))
  inference_device: str = setting(
      'auto', 'Where the policy acts: auto, cpu or gpu. auto: on the GPU if there is one. The learner is always on the '
      'GPU if there is one.', choices=('auto', 'cpu', 'gpu'))
  tf32: bool = setting(
      True, 'Let a GPU compute products of float32 numbers in TensorFloat-32, which has 10 bits of precision in place '
      "of 23 and is several times as fast. This is TensorFlow's default. CPUs and GPUs before Ampere, such as the "
      "paper's P100, compute in float32.")
  num_environments: settings.Count = setting(
      'auto', 'Number of environments that are stepped in parallel. auto: 32 per core, or 4 per core with levels of '
      'DeepMind Lab, and the same number for each level. A2C: always --batch_size, best a multiple of the number of '
      'levels. A3C: auto is 32, or 7 per level with several levels. A learner with actor hosts may have 0. '
      'The papers have 150 and 210 on DMLab-30 (IMPALA, section 5.3.1), and 256 (R2D2, table 2), on all machines.',
      at_least=0, at_most=settings.MAX_ENVIRONMENTS)
  num_environment_workers: settings.Count = setting(
      'auto', 'Number of processes that step the environments. auto: one per core, or one per environment with levels '
      'of DeepMind Lab.', at_least=1, at_most=settings.MAX_PROCESSES)
  num_inference_threads: settings.Count = setting(
      'auto', 'Number of inference loops, each with a batch of its own. auto: 1, or one per core without '
      '--dynamic_batching.', at_least=1, at_most=_MAX_INFERENCE_THREADS)
  num_kernel_threads: settings.Count = setting(
      'auto', 'Threads on which a process computes one operation of a network on the CPU. auto: half of the cores, '
      'since the environments need the others. All cores in a learner without environments, and in LASER if '
      'replay_share is at least 0.75, because it then learns for most of the time.',
      at_least=1, at_most=_MAX_KERNEL_THREADS)
  dynamic_batching: bool = setting(
      True, 'Compute the actions of environments that need one at the same time in one batch. Otherwise the action of '
      'each environment is computed alone, as by actors on CPUs in table 1 of Espeholt et al. 2018 (IMPALA). A3C '
      'always computes them alone, except with --synchronous.')
  environment_timeout_seconds: float = setting(
      60.0, 'A worker that does not answer for this many seconds is replaced. It answers when it has made all its '
      'environments, and each time it has stepped or reset half of them. While it compiles a map, it has 20 times as '
      'long. The time in which it waits for a processor does not count.', more_than=0, at_most=settings.MAX_SECONDS)
  # Each step lowers a process's weight against the other processes of its session by a fifth, so three steps halve it.
  worker_niceness: int = setting(
      3, "Added to the niceness of environment workers, so that the training process computes first. Not added if the "
      "training process's own niceness is above 0.", at_least=0, at_most=_MAX_NICENESS)
  # The released code has 600. Saving a deep network takes a few hundredths of a second, so the loss after a crash can
  # be limited to a minute of training.
  checkpoint_interval_seconds: float = setting(
      60.0, 'Seconds between two checkpoints. After a crash, training since the last checkpoint is lost.', more_than=0,
      at_most=settings.MAX_SECONDS)
  log_interval_seconds: float = setting(
      5.0, 'Seconds between two rows of metrics.jsonl. With --synchronous, each update has a row.', more_than=0,
      at_most=_MAX_LOG_INTERVAL_SECONDS)
  evaluation_interval: int = setting(
      0, 'Environment frames of training between two evaluations. 0: no evaluations during training. At the first '
      'checkpoint after each interval, and at the end, a process of the lowest priority plays the checkpoint as '
      '--mode=test does, and evaluations.jsonl gets the results. If an evaluation takes longer than the interval, '
      'those that become due meanwhile are skipped. While it plays, the process needs memory of its own: a TensorFlow, '
      "the checkpoint without a replay, the agent, and up to four of the run's environments.", at_least=0,
      at_most=settings.MAX_FRAMES)
  evaluation_episodes: int = setting(
      10, 'With --evaluation_interval: episodes per level and evaluation.', at_least=1, at_most=_MAX_TEST_EPISODES)
  test_num_episodes: int = setting(
      atari57.SUITE.test_episodes, 'With --mode=test: episodes per level. Espeholt et al. 2018, sections 5.3.1 and '
      '5.3.2.', at_least=1, at_most=_MAX_TEST_EPISODES)
  test_policy: str = setting(
      '', 'In evaluations: how actions are selected. sampled: from the policy. greedy: the most probable or most '
      'valuable action. epsilon: a random action with probability --test_epsilon, otherwise the greedy one. Default: '
      "epsilon for R2D2, and sampled for the other agents of this project; for an agent of your own, the first one of "
      "its definition's evaluation_policies.", choices=TEST_POLICIES)
  test_epsilon: float = setting(
      0.001, 'With --test_policy=epsilon: the probability of a random action.', at_least=0, at_most=1)
  video: str = setting('', 'With --mode=test: record an episode to this .mp4 or .gif file.')


FREE_FLAGS = frozenset(field.name for field in dataclasses.fields(RunConfig))


def from_flags(default_run: str, flag_values: flags.FlagValues = flags.FLAGS) -> RunConfig:
  """Returns the RunConfig with the values of the flags, and with absolute paths.

  Args:
    default_run: the run directory's name under runs/ if --logdir is not given.
    flag_values: where the flags are defined.
  Raises:
    UserError: a value is invalid.
    run_directory.RunDirectoryError: a path cannot be used or printed.
  """
  run = run_flags.config_from_flags(RunConfig, _validate, flag_values=flag_values)
  video = run.video and run_flags.user_path(run.video)
  return dataclasses.replace(run, logdir=directory(run.logdir, default_run), video=video)


def file_name(text: str) -> str:
  """Returns a text as the name of a file: letters, digits, dots and dashes stay, all else becomes an underscore."""
  return re.sub(r'[^\w.-]', '_', text)


def directory(logdir: str, default_run: str) -> str:
  """Returns the absolute path of a run directory: `logdir` or, if it is empty, a folder in runs/."""
  if logdir:
    return run_flags.user_path(logdir)
  with errors.of_user(run_directory.RunDirectoryError, prefix='no --logdir is given: '):
    return run_flags.user_path(os.path.join('runs', file_name(default_run)))


def _validate(run: RunConfig):
  settings.check(run)
  if run.video and not run.video.endswith(('.mp4', '.gif')):
    raise ValueError(f'--video={settings.shown(run.video)}: want a file that ends in .mp4 or .gif')
