"""Finds the settings of a run that differ from the paper's, except those that the paper swept or tuned.

IMPALA: Espeholt et al. 2018, sections 5.2.2, 5.3.1, 5.3.2, F, tables D.1, D.3 and G.1. R2D2: Kapturowski et al. 2019,
section 2.3 and table 2. LASER: Schmitt et al. 2020, section 5.1. The values are those of the presets
(agents/registry.py); agents that differ from these have the other values in published.Agent.settings. A setting that
this module does not know counts as a departure.
"""

import dataclasses
import math
from typing import Any

from scalable_agents.agents import registry
from scalable_agents.agents import sweeps
from scalable_agents.cluster import cluster_config
from scalable_agents.environments import dmlab
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.population import population_config
from scalable_agents.records import settings
from scalable_agents.tables.results import published
from scalable_agents.tables.results import runs as runs_lib
from scalable_agents.training import run_config

# These settings determine to which agent of the paper a run corresponds, or how far it was scaled down. The tables show
# them elsewhere.
_SHOWN_OTHERWISE = frozenset({
    'level_name', 'torso', 'use_lstm', 'off_policy_correction', 'total_environment_frames', 'population_size',
    'num_learners', 'num_actors', 'shared_replay'})
# These settings do not change what is learned, except through randomness. The last two are of agents with a replay.
FREE = frozenset({
    'seed', *run_config.FREE_FLAGS, *settings.free_settings(dmlab30_protocol.Protocol),
    *settings.free_settings(cluster_config.ClusterConfig), 'measure_delta_q', 'save_replay'})
_NO_DEPARTURES = (_SHOWN_OTHERWISE | FREE | {'sweep_index'}) - {'parameter_refresh'}


def _reference(preset_name: str, protocol: Any = None) -> dict[str, Any]:
  """Returns the settings of a preset by name, without those that the tables show elsewhere."""
  preset = registry.PRESETS[preset_name]
  values = {}
  for part in (preset.config, protocol or preset.protocol, cluster_config.ClusterConfig(),
               population_config.PopulationConfig()):
    values |= dataclasses.asdict(part)
  return {name: value for name, value in values.items() if name not in _NO_DEPARTURES}


_PAPER: dict[str, dict[str, dict[str, Any]]] = {  # Family -> suite -> setting -> value.
    'impala': {suite: _reference(f'impala_{suite}') for suite in ('atari57', 'dmlab30')},
    runs_lib.A3C: {suite: _reference(f'a3c_{suite}') for suite in ('atari57', 'dmlab30')},
    # published.py says what R2D2's protocols change.
    runs_lib.R2D2: {'atari57': _reference('r2d2_atari57', atari57_protocol.Protocol()),
                    'dmlab30': _reference('r2d2_dmlab30', dmlab30_protocol.Protocol())},
    runs_lib.LASER: {suite: _reference(f'laser_{suite}') for suite in ('atari57', 'dmlab30')},
}
# R2D2: other values that the paper has. Its actors fetch parameters every 400 environment frames.
_R2D2_ALSO = {'parameter_refresh': '100'}
_REFRESHES = (cluster_config.PAPER, cluster_config.UNROLL)
# LASER's sweep on Atari, section 5.1.
_LASER_GRID = {'learning_rate': (3e-4, 6e-4, 1.2e-3), 'entropy_cost': (5e-3, 1e-2, 2e-2)}
_RELEASED, _FIGURE_D1 = 'soft_asymmetric', 'optimistic_asymmetric'  # Forms of the asymmetric reward.


def papers(family: str, suite: str | None) -> dict[str, Any]:
  """Returns the paper's settings by name.

  Args:
    family: 'impala', 'a3c', 'r2d2' or 'laser', as in published.Agent.
    suite: name of the suite. None: only the settings that do not depend on the suite.
  """
  suites = _PAPER[family]
  if suite:
    return suites[suite]
  first, second = suites.values()
  return {name: value for name, value in first.items() if name in second and second[name] == value}


def decisive(run: runs_lib.Run) -> dict[str, Any]:
  """Returns the settings of a run that change what is learned, by name. Of addresses and paths, the kind counts."""
  values = {name: value for name, value in run.flags.items() if name not in FREE}
  if 'shared_replay' in values:  # The address is another one at each start.
    values['shared_replay'] = bool(values['shared_replay'])
  # The learners can be in one process or in several.
  return values | {'num_learners': run.learners} | settings.kinds(dmlab30_protocol.Protocol, run.flags)


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
            if name not in _NO_DEPARTURES and not _is_papers(name, value, run, agent)}
  if run.flags.get('dataset_path') == dmlab.DUMMY_DATASET:
    found['dataset_path'] = dmlab.DUMMY_DATASET
  if run.flags['total_environment_frames'] > agent.frames:  # The cell's text mentions fewer frames already.
    found['total_environment_frames'] = run.flags['total_environment_frames']
  return found


def _as_read(agent: published.Agent, run: runs_lib.Run) -> published.Agent:
  """Returns the agent with the settings of that reading of the paper that the run follows; see published.Agent."""
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
  # Older runs had the default 'unroll' or 'paper', which also is as in the paper.
  if name in paper and value == paper[name] or name == 'parameter_refresh' and value in _REFRESHES:
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
  """Returns whether a value is in LASER's sweep. Any threshold of the trust region counts: the paper states none."""
  if name == 'trust_region_threshold':
    return 0 < value < math.inf
  ranges = sweeps.LASER.ranges if agent.suite == 'dmlab30' else _LASER_GRID if agent.population > 1 else {}
  return name in ranges and value in ranges[name]
