"""Evaluates an R2D2 agent with a restricted memory. Kapturowski et al. 2019, section 5 and figure 5.

  scalable-agents r2d2_history --logdir=runs/r2d2_watermaze
  scalable-agents r2d2_history --logdir=runs/r2d2_watermaze --histories=inf,60,30,1 --num_episodes=30

The trained agent plays again, but in each step t its LSTM is computed anew, from zeros, on the last k observations
o_{t-k+1}, ..., o_t. With k = 1 it sees only the present one. With k = 0 it sees nothing, and its output is zero. `inf`
is the whole episode, as in training. For each k, the program measures the return, how often the greedy action is that
of the unrestricted agent, and how much the largest action values differ. The results are in the run directory's
restricted_history.json, from which `scalable-agents tables --paper=r2d2` draws the figure.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import contextlib
import dataclasses
import math
from typing import Any, NamedTuple, cast

import numpy as np
import sonnet as snt
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import actor_host
from scalable_agents.agents import configs
from scalable_agents.agents import python_api
from scalable_agents.agents import r2d2
from scalable_agents.environments import dmlab
from scalable_agents.environments import registry
from scalable_agents.evaluation import evaluation
from scalable_agents.networks import networks
from scalable_agents.processes import devices
from scalable_agents.processes import run_flags
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.training import run_config

_MAX_HISTORY = 10_000


@dataclasses.dataclass(frozen=True)
class HistoryConfig:
  """The flags."""
  logdir: str = setting('', 'The run directory of a trained R2D2 agent.', required='the folder of a run')
  histories: str = setting(
      'inf,120,80,40,1,0', 'Numbers k of observations that the LSTM sees, with the present one, separated by commas; '
      'inf for all. The default has those of figure 5, and 1.')
  num_episodes: int = setting(10, 'Episodes per level and history. Section 5.', at_least=1, at_most=1_000_000)
  num_environments: settings.Count = setting(
      'auto', 'Number of environments that are stepped in parallel. auto: as many as episodes, at most 32 per core, or '
      '4 per core with DeepMind Lab.',
      at_least=1, at_most=settings.MAX_ENVIRONMENTS)
  epsilon: float = setting(0.001, 'Probability of a random action.', at_least=0, at_most=1)
  dataset_path: str = setting('', python_api.DATASET_PATH)
  renderer: str = setting('software', "DeepMind Lab's renderer: software, or hardware, which needs EGL.",
                          choices=dmlab.RENDERERS)


def validate(config: HistoryConfig) -> None:
  """Raises ValueError for the first setting out of range; the message is one line."""
  settings.check(config)
  histories_of(config)


def histories_of(config: HistoryConfig) -> list[float]:
  """Returns the values of --histories; math.inf for `inf`. Raises ValueError."""
  histories = []
  for text in config.histories.split(','):
    if text != 'inf' and not (text.isdecimal() and int(text) <= _MAX_HISTORY):
      raise ValueError(f'--histories={settings.shown(config.histories)}: want inf or whole numbers from 0 to '
                       f'{_MAX_HISTORY} with commas between them')
    histories.append(math.inf if text == 'inf' else int(text))
  return histories


class Output(NamedTuple):
  """What the restricted agent does, compared with the unrestricted one."""
  action: tf.Tensor           # [B] int32.
  value_difference: tf.Tensor  # [B] float32, |max Q of the restricted - max Q of the unrestricted one|.


class State(NamedTuple):
  """What an actor keeps from row to row."""
  whole: Any            # The unrestricted recurrent state.
  earlier: Any          # The earlier inputs of the LSTM, [B, history - 1, D], and [B] int32, their number; () for inf.
  has_begun: tf.Tensor  # [B] bool. Rows with which a batch is padded never begin an episode, and are not counted.


class RestrictedAgent(snt.Module):
  """Acts with an LSTM that is computed anew in each step, on the last `history` observations.

  It has the whole recurrent state as well, for the comparison. Its variables count what was compared.
  """

  def __init__(self, agent: r2d2.Agent, config: configs.R2d2Config, history: float):
    super().__init__('restricted')
    self._network = agent.online
    self._config = config
    self._history = history
    self._core = cast(networks.LSTMCore, agent.online.core)  # `main` refuses runs without an LSTM.
    self._num_earlier = max(history - 1, 0)  # Observations before the present one.
    self.acting_variables = agent.acting_variables
    with tf.device('/CPU:0'):
      self.num_steps, self.num_matches, self.value_differences = (
          tf.Variable(0., dtype=tf.float64, trainable=False) for _ in range(3))

  def initial_state(self, batch_size) -> State:
    """The state before the first row; see agent_lib.Agent."""
    earlier = ()
    if self._history < math.inf:
      earlier = (tf.zeros([batch_size, self._num_earlier, self._network.input_size]), tf.zeros([batch_size], tf.int32))
    return State(self._network.initial_state(batch_size), earlier, tf.zeros([batch_size], tf.bool))

  def step(self, inputs: acting.ActorInput, agent_state, seed, selection: acting.Selection = acting.Selection()):
    """Selects actions; see agent_lib.Agent."""
    whole, earlier, has_begun = agent_state
    has_begun |= inputs.done
    resets = r2d2.resets(inputs, self._config)
    encoded = self._network.encode(inputs._replace(observation=self._network.prepare(inputs.observation)))
    output, whole = self._core.step(encoded, resets, whole)
    true_values = values = self._network.head(output)                           # [B, A].
    if earlier:
      values, earlier = self._recompute(encoded, resets, *earlier)
    action = acting.epsilon_greedy(values, selection.epsilon, seed)
    matches = acting.greedy(values) == acting.greedy(true_values)
    differences = tf.abs(tf.reduce_max(values, axis=-1) - tf.reduce_max(true_values, axis=-1))
    if tf.inside_function():  # An eager call only asks for the shapes of the outputs, and is not counted.
      for variable, counts in ((self.num_steps, tf.ones_like(differences)), (self.num_matches, matches),
                               (self.value_differences, differences)):
        variable.assign_add(tf.reduce_sum(tf.where(has_begun, tf.cast(counts, tf.float64), 0.)))
    return Output(action, differences), State(whole, earlier, has_begun)

  def _recompute(self, encoded, resets, earlier, num_earlier):
    """Computes the values from the present input and the earlier ones. Returns them, and the new inputs and number."""
    num_earlier = tf.where(resets, 0, num_earlier)
    inputs = tf.concat([earlier, encoded[:, tf.newaxis]], axis=1)               # [B, history, D].
    # The state is reset in every row up to the first one of the history, so it is zero there.
    first = self._num_earlier - num_earlier                                     # [B].
    is_before = tf.range(self._num_earlier + 1)[:, tf.newaxis] <= first         # [history, B].
    outputs, _ = self._core.unroll(
        tf.transpose(inputs, [1, 0, 2]), is_before, self._network.initial_state(tf.shape(encoded)[0]))
    output = outputs[-1] if self._history else tf.zeros_like(outputs[-1])
    return self._network.head(output), (inputs[:, 1:], tf.minimum(num_earlier + 1, self._num_earlier))


def main():
  """Plays, and writes and prints the results."""
  config = run_flags.config_from_flags(HistoryConfig, validate)
  config = dataclasses.replace(config, logdir=run_flags.user_path(config.logdir))
  stored = run_directory.read_config(config.logdir)
  settings_of_run = stored['flags']
  unfit = errors.UserError(f'{config.logdir}: want the run of an R2D2 agent with an LSTM')
  if stored.get('agent') != r2d2.R2D2.name:  # Also a variant that is not of this project.
    raise unfit
  trained = python_api.read(config.logdir, dataset_path=config.dataset_path, renderer=config.renderer)
  if not trained.config.use_lstm:
    raise unfit
  with errors.of_user(ValueError):  # Checked in this process: a worker's message would have a traceback.
    for level in trained.levels:
      registry.check_settings(level, trained.protocol)
  with run_directory.open_evaluation(config.logdir, settings_of_run, (), r2d2.R2D2.name) as directory:
    quiet.keep_log(run_directory.path(directory.path, run_directory.LIBRARY_LOG))
    devices.configure_tensorflow(settings_of_run.get('tf32', True))
    print(devices.describe(acts=devices.choose()), file=quiet.screen(), flush=True)
    loaded = evaluation.load(directory.path, directory.logdir)  # Once: the run may go on and save another one.
    results = {}
    for level_id, level in enumerate(trained.levels):
      results[level] = {str(history): evaluate(config, trained, level_id, history, loaded)
                        for history in histories_of(config)}
      print(report(level, results[level]), flush=True)
    directory.check_in_place()
    run_directory.write_json(run_directory.path(directory.path, run_directory.RESTRICTED_HISTORY), results)


def evaluate(config: HistoryConfig, trained: python_api.StoredRun, level_id: int, history: float,
             loaded: checkpoint.Loaded) -> dict[str, Any]:
  """Plays the episodes of one level with one history, with the parameters of the checkpoint in `loaded`.

  Returns:
    A dict of 'episode_returns', 'mean_return', 'greedy_match' (share of the steps), 'value_difference' (mean), and
    'environment_frames', after which the checkpoint was saved.
  """
  run = evaluation.with_environments(run_config.RunConfig(
      test_num_episodes=config.num_episodes, num_environments=config.num_environments,
      environment_timeout_seconds=trained.timeout_seconds), [trained.levels[level_id]])
  agents = []

  def make_restricted():
    agents.append(RestrictedAgent(cast(r2d2.Agent, make_agent()), trained.config, history))
    return agents[-1]

  screen = quiet.screen()
  seed = evaluation.seed_of(trained.config.seed, level_id)  # The same for each history.
  with evaluation.explaining(config.logdir, loaded), contextlib.closing(
      actor_host.ActorHost(trained.levels, trained.protocol, run, seed, screen, played=[level_id])) as host:
    make_agent = r2d2.R2D2.maker(host, trained.levels, trained.config)
    restored = evaluation.restore(make_agent, loaded, host.device)
    evaluator = evaluation.play(restored, make_restricted, acting.Selection(acting.EPSILON, config.epsilon), host, run,
                                screen)
  returns = [episode.episode_return for episode in evaluator.episodes(level_id)]
  steps, matches, differences = (sum(float(getattr(agent, name)) for agent in agents)
                                 for name in ('num_steps', 'num_matches', 'value_differences'))
  return {'episode_returns': returns, 'mean_return': float(np.mean(returns)), 'greedy_match': matches / steps,
          'value_difference': differences / steps, 'environment_frames': restored.environment_frames}


def report(level: str, results: dict[str, dict[str, Any]]) -> str:
  """Returns the results of a level as a table."""
  lines = [f'{level}: {"history":>7} {"return":>12} {"greedy match":>13} {"difference of max Q":>20}']
  for history, result in results.items():
    lines.append(f'{"":{len(level)}}  {history:>7} {result["mean_return"]:>12.2f} {result["greedy_match"]:>13.1%} '
                 f'{result["value_difference"]:>20.4f}')
  return '\n'.join(lines)


if __name__ == '__main__':
  run_flags.define(HistoryConfig())
  run_flags.run_main(main)
