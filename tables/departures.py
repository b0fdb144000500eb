"""Finds the settings of a run that differ from the paper's, except those that the paper swept or tuned.

IMPALA: Espeholt et al. 2018, sections 5.2.2, 5.3.1, 5.3.2, F, tables D.1, D.3 and G.1. R2D2: Kapturowski et al. 2019,
section 2.3 and table 2. LASER: Schmitt et al. 2020, section 5.1. Agents that differ from these three have the other
values in published.Agent.settings. If the paper states no value, the value here is the released code's or this
project's default. Tests compare these values with the binaries' defaults, and fail if a binary has a setting that is
missing here. A setting that this module does not know counts as a departure.
"""

import dataclasses
import math
from typing import Any

from scalable_agents.agents import sweeps
from scalable_agents.cluster import cluster_config
from scalable_agents.environments import dmlab
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.records import settings
from scalable_agents.tables import published
from scalable_agents.tables import runs as runs_lib
from scalable_agents.training import run_config

# These settings determine to which agent of the paper a run corresponds, or how far it was scaled down. The tables show
# them in other ways.
_SHOWN_OTHERWISE = frozenset({
    'level_name', 'torso', 'use_lstm', 'off_policy_correction', 'total_environment_frames', 'population_size',
    'num_learners', 'num_actors', 'shared_replay'})
# These settings do not change what is learned, except through randomness. The last two are of agents with a replay.
FREE = frozenset({
    'seed', *run_config.FREE_FLAGS, *settings.free_settings(dmlab30_protocol.Protocol),
    *settings.free_settings(cluster_config.ClusterConfig), 'measure_delta_q', 'save_replay'})
_FREE = (FREE | {'sweep_index'}) - {'parameter_refresh'}

COMMON: dict[str, Any] = {  # IMPALA: flag -> value, for both suites.
    'torso_precision': 'float32', 'centre_pixels': False,
    'batch_size': 32, 'discount': 0.99, 'baseline_cost': 0.5,
    'use_pixel_control': False, 'pixel_control_cost': 0.05, 'pixel_control_discount': 0.9,
    'clip_rho_threshold': 1.0, 'clip_pg_rho_threshold': 1.0, 'vtrace_lambda': 1.0, 'policy_lag': 0,
    'action_values': 'bootstrapped', 'replay_share': 0.0, 'replay_capacity': 1_000_000,
    'optimizer': 'rmsprop', 'learning_rate_decay': True, 'rmsprop_decay': 0.99, 'rmsprop_momentum': 0.0,
    'adam_beta1': 0.9, 'adam_beta2': 0.999, 'adam_epsilon': 1e-8,
    'queue_size': 1, 'synchronous': False, 'parameter_refresh': cluster_config.UNROLL,
    'population_episodes': 5_000, 'population_initial_frames': 20_000_000,
}
PAPER: dict[str, dict[str, Any]] = {  # IMPALA: suite -> flag -> value.
    'atari57': COMMON | dataclasses.asdict(atari57_protocol.Protocol()) | {
        'unroll_length': 20, 'reward_transform': 'abs_one', 'learning_rate': 6e-4, 'entropy_cost': 0.01,
        'rmsprop_epsilon': 0.01, 'clip_gradient_norm': 40.0},
    'dmlab30': COMMON | dataclasses.asdict(dmlab30_protocol.Protocol()) | {
        'unroll_length': 100, 'reward_transform': 'soft_asymmetric', 'learning_rate': 0.00031866995608948655,
        'entropy_cost': 0.0033391318945337044, 'rmsprop_epsilon': 0.1, 'clip_gradient_norm': 0.0},
}
R2D2: dict[str, Any] = {  # Flag -> value, for both suites.
    'torso_precision': 'float32', 'centre_pixels': False, 'dense_before_lstm': False,
    'epsilon_base': 0.4, 'epsilon_exponent': 7.0, 'num_actors': 0, 'policy_lag': 0,
    'burn_in': 40, 'sequence_length': 80, 'sequence_period': 40, 'cross_episodes': False, 'recurrent_state': 'stored',
    'reset_on_life_loss': False,
    'replay_capacity': 100_000, 'replay_minimum_size': 1_250, 'samples_per_period': 0.77,
    'priority_exponent': 0.9, 'importance_exponent': 0.6, 'priority_eta': 0.9,
    'unroll_length': 40, 'batch_size': 64, 'discount': 0.997, 'n_step': 5, 'value_rescaling': True,
    'reward_transform': 'none', 'target_update_interval': 2_500,
    'learning_rate': 1e-4, 'learning_rate_decay': False, 'adam_beta1': 0.9, 'adam_beta2': 0.999, 'adam_epsilon': 1e-3,
    'clip_gradient_norm': 40.0,
    'queue_size': 4, 'synchronous': False, 'parameter_refresh': cluster_config.UNROLL,
    'population_episodes': 5_000, 'population_initial_frames': 20_000_000,
}
# R2D2: other values that the paper has. Its actors fetch parameters every 400 environment frames.
_R2D2_ALSO = {'parameter_refresh': '100'}
_LASER_COMMON: dict[str, Any] = {  # LASER: what differs from IMPALA. Flag -> value, for both suites.
    'learning_rate_decay': False, 'clip_gradient_norm': 0.0,
    'popart_decay': 3e-4, 'popart_second_moment': 'literal', 'relevance': 'implied', 'replay_capacity': 10_000_000,
    'replay_minimum_size': 10_000, 'replay_sampling': 'episodes', 'priority_exponent': 0.6, 'importance_exponent': 1.0,
    'learn_online': True, 'entropy_steps': 'online',
}
LASER: dict[str, dict[str, Any]] = {  # Suite -> flag -> value.
    'atari57': PAPER['atari57'] | _LASER_COMMON | {
        'unroll_length': 19, 'batch_size': 160, 'replay_share': 0.8, 'discount': 0.995, 'value_normalization': 'none',
        'noop_max': 37},
    'dmlab30': PAPER['dmlab30'] | _LASER_COMMON | {
        'unroll_length': 79, 'batch_size': 256, 'replay_share': 0.875, 'value_normalization': 'popart',
        'use_pixel_control': True, 'action_set': 'popart'},
}
# LASER's sweep on Atari, section 5.1.
_LASER_GRID = {'learning_rate': (3e-4, 6e-4, 1.2e-3), 'entropy_cost': (5e-3, 1e-2, 2e-2)}
_RELEASED, _FIGURE_D1 = 'soft_asymmetric', 'optimistic_asymmetric'  # Forms of the asymmetric reward.


def papers(family: str, suite: str | None) -> dict[str, Any]:
  """Returns the paper's settings by name.

  Args:
    family: 'impala', 'r2d2' or 'laser', as in published.Agent.
    suite: name of the suite. None: only the settings that do not depend on the suite.
  """
  if family == runs_lib.R2D2:
    protocols = {'atari57': atari57_protocol.Protocol, 'dmlab30': dmlab30_protocol.Protocol}
    return R2D2 | (dataclasses.asdict(protocols[suite]()) if suite else {})
  if family == runs_lib.LASER:
    return LASER[suite] if suite else COMMON | _LASER_COMMON
  return PAPER[suite] if suite else COMMON


def departures(run: runs_lib.Run, agent: published.Agent) -> dict[str, Any]:
  """Returns the settings of a run that differ from the paper's, and their values.

  Args:
    run: a run. If its evaluation was read, the settings of the evaluation are compared too.
    agent: the agent of the paper to which the run corresponds.
  Returns:
    A dict from setting to the run's value. Settings that are missing in the config.json of an older run are left out.
  """
  agent = _as_read(agent, run)
  evaluated = run.evaluation.departures if run.evaluation else ()
  found = {name: value for name, value in evaluated if dict(agent.settings).get(name) != value}
  # PopArt-IMPALA's table has one agent, whatever the network, the members and the learners are. So these can depart
  # there. In the other tables they determine the agent.
  found |= {name: run.flags[name] for name in ('torso', 'use_lstm') if run.flags[name] != getattr(agent, name)}
  found |= {name: here for name, here, most in (('population_size', run.population, agent.population),
                                                ('num_learners', run.learners, agent.learners)) if here > most}
  if agent.actors and (run.actors or 0) > agent.actors:
    found['num_actors'] = run.actors
  found |= {name: value for name, value in run.flags.items()
            if name not in _SHOWN_OTHERWISE | _FREE and not _is_papers(name, value, run, agent)}
  if run.flags.get('dataset_path') == dmlab.DUMMY_DATASET:
    found['dataset_path'] = dmlab.DUMMY_DATASET
  if run.flags['total_environment_frames'] > agent.frames:  # The cell's text mentions fewer frames already.
    found['total_environment_frames'] = run.flags['total_environment_frames']
  return found


def _as_read(agent: published.Agent, run: runs_lib.Run) -> published.Agent:
  """Returns the agent in the reading of the paper that the run follows."""
  also = dict(agent.also)
  if not also or any(run.flags.get(name) != value for name, value in also.items()):
    return agent
  return agent._replace(use_lstm=also.pop('use_lstm'), settings=(*agent.settings, *also.items()))


def _is_papers(name: str, value: Any, run: runs_lib.Run, agent: published.Agent) -> bool:
  """Returns whether the paper used this value for the agent, or may have used it in its sweep or population."""
  paper = papers(agent.family, agent.suite) | dict(agent.settings)
  if name == 'learning_rate_decay' and run.population > 1:
    return not value  # Figure F.1: the population tunes the learning rate, which is not annealed.
  if name == 'full_action_set' and not agent.experts:
    return True  # An agent for several games always has all actions.
  if name in paper and value == paper[name]:
    return True
  if name == 'reward_transform' and paper[name] == _RELEASED:
    return value == _FIGURE_D1  # The paper's form. The default is the released code's form.
  if agent.family == runs_lib.R2D2:
    return name in _R2D2_ALSO and value == _R2D2_ALSO[name]
  if agent.family == runs_lib.LASER:
    return _is_in_lasers_sweep(name, value, agent)
  has_sweep = agent.suite == 'dmlab30' or agent.population > 1
  if name in sweeps.IMPALA.ranges and has_sweep:
    return value in sweeps.IMPALA.ranges[name]
  # On Atari the population also tunes the clipping threshold. The paper does not state its initial value.
  return name == 'clip_gradient_norm' and agent.suite == 'atari57' and agent.population > 1 and value > 0


def _is_in_lasers_sweep(name: str, value: Any, agent: published.Agent) -> bool:
  """Returns whether a value is in LASER's sweep, or is a threshold of the trust region. The paper does not state it."""
  if name == 'trust_region_threshold':
    return 0 < value < math.inf
  ranges = sweeps.LASER.ranges if agent.suite == 'dmlab30' else _LASER_GRID if agent.population > 1 else {}
  return name in ranges and value in ranges[name]
