"""Measures the parts of IMPALA on this machine one by one, and compares the whole training with the sum of its parts.

  make benchmark        or        scalable-agents benchmark

There are four sections. The first one is IMPALA on Pong with the shallow network. The second one is R2D2 on Pong with
the paper's sequences, and its replay. The third one is LASER on Pong with its replay and replayers. The fourth one is
IMPALA's deep network with LSTM and language on images of 72x96, as on DeepMind Lab's levels, with environments that
take almost no time.

Each part is measured in one process per core, so that all cores are busy. The result is the part's CPU time per agent
step. If nothing else cost time, the cores would make `cores / sum of the CPU times` steps per second. This is the
additive bound. The environment is measured as a worker steps it in training, in groups of 16 games, in turns with the
emulators alone. The program reports parts that are much slower than on comparable processors. The learners of PopArt,
of LASER and of pixel control are not parts of IMPALA: they are compared with its learner in turns, in one process.

The last line of the output is a JSON object with all numbers. Compare only numbers from the same run, because the speed
of a machine varies from run to run. To compare two versions of the code:

  make benchmark | tail -n 1 > old.json                                 in a checkout of the old version
  make benchmark ARGS=--compare=/path/to/old.json                       in the new one

The second command runs both checkouts in turns, with the settings of old.json, and prints how many times as fast the
new one is.
"""

from concurrent import futures
import dataclasses
import functools
import json
import multiprocessing
import os
import signal
import sys
from typing import Any

import numpy as np
import tree

from scalable_agents.benchmark import benchmark_parts
from scalable_agents.benchmark import in_turns
from scalable_agents.benchmark import laser_parts
from scalable_agents.benchmark import r2d2_parts
from scalable_agents.benchmark import training_rate
from scalable_agents.processes import kernels
from scalable_agents.processes import machine
from scalable_agents.processes import parent_death
from scalable_agents.processes import python_path
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records.settings import setting
from scalable_agents.tools import peers

_STDERR = 2
_SETTINGS = 'seconds', 'torso_precision', 'dmlab_unroll_length', 'dmlab_batch_size'  # What is needed to repeat a run.
# Learners that are compared with IMPALA's -> what they have in addition.
_LEARNERS = {'popart_impala': 'PopArt with {levels} levels', 'laser': "LASER's trust region",
             'pixel_control': 'pixel control', 'pixel_popart': 'PopArt and pixel control'}


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
  """The flags."""

  seconds: float = setting(10., 'Seconds for which each part is measured. The whole training is measured six or eight '
                           'times as long.', at_least=0.1, at_most=training_rate.MAX_SECONDS)
  torso_precision: str = setting('float32', "Data type of the network's torso: float32 or bfloat16. See this flag of "
                                 'impala_atari57.', choices=('float32', 'bfloat16'))
  dmlab_unroll_length: int = setting(100, 'Fourth section: agent steps per unroll. Table D.3 of the paper.', at_least=1,
                                     at_most=10_000)
  dmlab_batch_size: int = setting(
      32, 'Fourth section: unrolls per update. An update needs 3.5 MB of memory for each step of each unroll, which is '
      '11 GB by default. Then one learner per core is measured, on shorter unrolls. By default, each needs 3 GB, so '
      'machines with more than four cores need more than 11 GB.', at_least=1, at_most=10_000)
  compare: str = setting(
      '', 'A file with the last line that this program has printed in another checkout. Both checkouts are measured in '
      'turns, with the settings of that run. Empty: only this checkout is measured.')
  turns: int = setting(5, 'With --compare: number of times that each checkout is measured.', at_least=2, at_most=1000)


def _begin_part():
  kernels.choose()
  parent_death.signal_at_parents_end(signal.SIGTERM)
  os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)


def _executor(processes):
  """Returns an executor with new processes. They print nothing to stderr, and end when this process ends."""
  return futures.ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context('spawn'),
                                     initializer=_begin_part)


def _on_all_cores(part, *arguments) -> Any:
  """Runs a part in one process per core at the same time. Returns the means of the results."""
  cores = machine.num_cores()
  with _executor(cores) as executor:
    results = [future.result() for future in [executor.submit(part, *arguments) for _ in range(cores)]]
  return tree.map_structure(lambda *values: float(np.mean(values)), *results)


def _alone(part, *arguments) -> Any:
  """Runs a part in a process of its own."""
  with _executor(1) as executor:
    return executor.submit(part, *arguments).result()


def _line(name, figure, cpu_seconds=None):
  print(f'{name:<44}{figure:>12,.0f}' + (f'{cpu_seconds * 1e6:>16,.1f}' if cpu_seconds else ''), flush=True)


def _against_bound(end_to_end, workload, inference, *others):
  """Prints the additive bound and the share of it that the whole training reaches. Returns the section's numbers."""
  occurring = _occurring(end_to_end)
  cost = sum(part['cpu_seconds'] for part in (inference[occurring], *others))
  return {'end_to_end_steps_per_second': end_to_end['steps_per_second'], 'end_to_end': end_to_end,
          'inference': inference,
          **_share_of_bound(end_to_end, workload, cost, f'inference in batches of {occurring} on average')}


def _share_of_bound(end_to_end, workload, cost, circumstances):
  """Prints and returns the additive bound, from the CPU time that an agent step costs, and the share of it."""
  bound = machine.num_cores() / cost
  share = end_to_end['steps_per_second'] / bound
  _line('additive bound: agent steps', bound, cost)
  print(f'end to end is {share:.1%} of the bound (wanted: {workload.wanted_share:.0%}), with {circumstances}',
        flush=True)
  return {'bound_steps_per_second': bound, 'share_of_bound': share}


def _occurring(end_to_end):
  """Returns the mean batch size of inference, rounded."""
  return max(1, round(end_to_end['inference_batch_size']))


def _network_parts(seconds, workload, batch_sizes):
  """Measures and prints inference at these batch sizes, and the learner. Returns the numbers of both."""
  inference = _on_all_cores(benchmark_parts.inference, 2 * seconds, workload, sorted(batch_sizes))
  for size, result in inference.items():
    _line(f'inference: rows, batches of {size}, one core', result['rows_per_second'], result['cpu_seconds'])
  learner = _on_all_cores(benchmark_parts.learner, seconds, workload)
  _line('learner: transitions, one core', learner['transitions_per_second'], learner['cpu_seconds'])
  return inference, learner


def _other_agents(seconds, workload, names):
  """Compares the learners of other agents with IMPALA's. Returns the numbers of all."""
  rates, ratios = _alone(benchmark_parts.learners, 6 * seconds, workload, names)
  levels = benchmark_parts.LEVELS[workload.level]
  for name in names:
    _line(f'  with {_LEARNERS[name].format(levels=levels)}: transitions, alone', rates[name])
    print(f'    {ratios[name]:.1%} of the speed of IMPALA\'s, measured in turns', flush=True)
  return {'transitions_per_second': rates, 'ratio_to_impala': ratios}


def _measure_pong(seconds, workload):
  """Measures the first section. Returns its numbers."""
  end_to_end = benchmark_parts.end_to_end(6 * seconds, workload)
  _line('IMPALA on Pong, end to end: agent steps', end_to_end['steps_per_second'])
  environment = _on_all_cores(benchmark_parts.environment, seconds)
  _line('environment: agent steps, one core', environment['steps_per_second'], environment['cpu_seconds'])
  emulator_cpu = environment['emulator_cpu_seconds']
  _line('  the emulator alone: the same', 1 / emulator_cpu, emulator_cpu)
  print(f'  the environment takes {environment["ratio_to_emulator"]:.3f} times as long, measured in turns', flush=True)
  _line('  ale-py\'s AtariVectorEnv: the same', environment['vector_env_steps_per_second'],
        environment['vector_env_cpu_seconds'])
  batch_size = workload.config['batch_size']
  inference, learner = _network_parts(seconds, workload, {1, 8, 16, batch_size, _occurring(end_to_end)})
  learners = _other_agents(seconds, workload, ('popart_impala', 'laser', 'pixel_control'))
  batcher = _alone(benchmark_parts.batcher, seconds)
  _line('dynamic batcher: calls', batcher['calls_per_second'])
  pool = _alone(benchmark_parts.actor_pool, seconds, workload)
  _line('actor pool, free environments and policy: steps', pool['steps_per_second'])
  return {**_against_bound(end_to_end, workload, inference, environment, learner), 'environment': environment,
          'learner': learner, 'learners': learners, 'dynamic_batcher': batcher, 'actor_pool': pool,
          'shortfalls': _shortfalls(seconds, workload, environment, inference[batch_size], learner)}


def _shortfalls(seconds, workload, environment, inference, learner):
  """Prints and returns a line for each part that is much slower than on comparable processors."""
  is_onednn_on = _alone(kernels.is_onednn_on)
  lines = peers.shortfalls(environment, inference, learner, workload.config['torso_precision'], is_onednn_on)
  if not is_onednn_on:
    with_onednn = _on_all_cores(benchmark_parts.learner_with_onednn, seconds, workload)
    lines += peers.shortfall_without_onednn(learner, with_onednn)
  for line in lines:
    print(line, flush=True)
  return lines


def _measure_dmlab(seconds, workload):
  """Measures the fourth section. Returns its numbers."""
  end_to_end = benchmark_parts.end_to_end(8 * seconds, workload)  # An update takes seconds.
  _line('IMPALA, end to end: agent steps', end_to_end['steps_per_second'])
  inference, learner = _network_parts(seconds, workload, {workload.config['batch_size'], _occurring(end_to_end)})
  learners = _other_agents(seconds, workload, ('popart_impala', 'pixel_popart'))
  return {**_against_bound(end_to_end, workload, inference, learner), 'learner': learner, 'learners': learners}


def _measure_r2d2(seconds, environment, workload):
  """Measures the second section. Returns its numbers."""
  end_to_end = r2d2_parts.end_to_end(8 * seconds, workload)
  _line('R2D2 on Pong, end to end: agent steps', end_to_end['steps_per_second'])
  size = _occurring(end_to_end)
  inference = _on_all_cores(benchmark_parts.inference, seconds, workload, [size])[size]
  _line(f'inference: rows, batches of {size}, one core', inference['rows_per_second'], inference['cpu_seconds'])
  learner = _on_all_cores(r2d2_parts.learner, 2 * seconds, workload)
  _line('learner: sequences, one core', learner['sequences_per_second'], learner['cpu_seconds'])
  costs = _on_all_cores(r2d2_parts.replay_costs, seconds, workload)
  _line('replay: agent steps inserted, one core', 1 / costs['insert_cpu_seconds'], costs['insert_cpu_seconds'])
  _line('replay: sequences sampled, one core', 1 / costs['sample_cpu_seconds'], costs['sample_cpu_seconds'])
  at_once = _alone(r2d2_parts.replay_at_once, seconds, workload)
  _line('replay, both at once: sequences inserted', at_once['inserted_per_second'])
  _line('replay, both at once: sequences sampled', at_once['sampled_per_second'])
  print(f'  which is {at_once["sampled_bytes_per_second"] * 1e-9:.2f} GB/s of frames', flush=True)
  priorities = _alone(r2d2_parts.priorities, seconds)
  for name in ('sample', 'update'):
    cpu = priorities[f'{name}_cpu_seconds']
    _line(f'{name} one of {priorities["sequences"]:,} priorities', 1 / cpu, cpu)
  learned = end_to_end['sequences_learned_per_step']
  cost = environment['cpu_seconds'] + inference['cpu_seconds'] + costs['insert_cpu_seconds'] + learned * (
      costs['sample_cpu_seconds'] + learner['cpu_seconds'])
  return {'end_to_end': end_to_end, 'inference': inference, 'learner': learner, 'replay': costs | at_once,
          'priorities': priorities,
          **_share_of_bound(end_to_end, workload, cost, f'{learned:.4f} sequences learned per agent step')}


def _measure_laser(seconds, environment, workload):
  """Measures the third section. Returns its numbers."""
  end_to_end = laser_parts.end_to_end(8 * seconds, workload)
  _line('LASER on Pong, end to end: new agent steps', end_to_end['steps_per_second'])
  inference, learner = _network_parts(seconds, workload, {_occurring(end_to_end)})
  actor_cpu = environment['cpu_seconds'] + inference[_occurring(end_to_end)]['cpu_seconds']
  costs = _on_all_cores(laser_parts.replayers, seconds, workload, False)
  of_lstm = _on_all_cores(laser_parts.replayers, seconds, workload, True)
  _line('replay: agent steps inserted, one core', 1 / costs['insert_cpu_seconds'], costs['insert_cpu_seconds'])
  for name, cost in (('replayers', costs), ('replayers with an LSTM', of_lstm)):
    _line(f'{name}: agent steps, one core', 1 / cost['replay_cpu_seconds'], cost['replay_cpu_seconds'])
    print(f'  which is {actor_cpu / cost["replay_cpu_seconds"]:.1f} times the speed of actors', flush=True)
  learned = 1 / (1 - workload.config['replay_share'])  # Agent steps learned from for each new one.
  cost = actor_cpu + costs['insert_cpu_seconds'] + learned * learner['cpu_seconds'] + (
      (learned - 1) * costs['replay_cpu_seconds'])
  return {'end_to_end': end_to_end, 'inference': inference, 'learner': learner, 'replayers': costs,
          'replayers_with_lstm': of_lstm,
          **_share_of_bound(end_to_end, workload, cost, f'{learned:g} agent steps learned from per new one')}


def _compare(file, turns):
  """Measures this checkout and that of an earlier run in turns. Prints a table of ratios, and a JSON line with them.

  Raises:
    errors.UserError: the file is not from this program, its checkout is gone or is this one, or a benchmark has failed.
  """
  try:
    with open(file, encoding='utf-8') as lines:
      earlier = json.load(lines)
    old, flags = earlier['checkout'], [f'--{name}={earlier[name]}' for name in _SETTINGS]
  except (OSError, UnicodeDecodeError, ValueError, TypeError, KeyError) as error:
    raise errors.UserError(f'--compare={file}: want a file with the last line of this program in another checkout: '
                           f'{type(error).__name__}: {error}') from error
  if os.path.realpath(old) == in_turns.checkout():
    raise errors.UserError(f'--compare={file}: it was made in this checkout; want one of another version, for example '
                           'from `git worktree add`')
  command = ['-m', 'scalable_agents.tools.benchmark', *flags]
  environment = dict(os.environ)
  environment.pop('PYTHONPATH', None)  # Bazel sets it, and the old checkout would import this one's code.
  environment['PYTHONSAFEPATH'] = '1'  # A folder scalable_agents in the current folder would come before the checkout.
  print(f'old: {old}\nnew: {in_turns.checkout()}', flush=True)
  ratios = in_turns.compare(
      functools.partial(in_turns.measure, [in_turns.python_of(old), *command], environment),
      functools.partial(in_turns.measure, [sys.executable, *command], python_path.environment()), turns,
      lambda turn: print(f'turn {turn} of {turns} is measured', flush=True))
  print(f'{"":<52}{"times as fast":>14}   95 % interval')
  for name, ratio, low, high in ratios:
    print(f'{name:<52}{ratio:>14.3f}   {low:.3f} to {high:.3f}')
  print(json.dumps({ratio.figure: ratio[1:] for ratio in ratios}))


def main():
  """Measures all sections. Prints the table line by line, then the JSON line. With --compare: see `_compare`."""
  config = run_flags.config_from_flags(BenchmarkConfig)
  if config.compare:
    return _compare(run_flags.user_path(config.compare), config.turns)
  os.environ['CUDA_VISIBLE_DEVICES'] = '-1'  # For the processes of the parts.
  print('learns and acts on the CPU; `make gpu-proof` measures a card', flush=True)
  cores, seconds, precision = machine.num_cores(), config.seconds, config.torso_precision
  columns = f'{"per second":>12}{"CPU us each":>16}'
  print(f'{f"{cores} cores, {precision}, shallow network":<44}{columns}', flush=True)
  figures = _measure_pong(seconds, benchmark_parts.pong(precision))
  print(f'\nR2D2: sequences of 40 + 80 steps, shallow network\n{"":<44}{columns}', flush=True)
  figures['r2d2'] = _measure_r2d2(seconds, figures['environment'], r2d2_parts.pong(precision))
  print(f'\nLASER: 8 new and 32 replayed unrolls of 19 steps, shallow network\n{"":<44}{columns}', flush=True)
  figures['laser'] = _measure_laser(seconds, figures['environment'], laser_parts.pong(precision))
  dmlab = benchmark_parts.dmlab(precision, config.dmlab_unroll_length, config.dmlab_batch_size)
  print('\nDeep network, LSTM and language on 72x96 pixels; environments that cost nothing; '
        f'{dmlab.config["batch_size"]} unrolls of {dmlab.config["unroll_length"]}\n{"":<44}{columns}', flush=True)
  figures |= {'cores': cores, 'checkout': in_turns.checkout(), 'dmlab': None,
              **{name: getattr(config, name) for name in _SETTINGS}}
  try:
    figures['dmlab'] = _measure_dmlab(seconds, dmlab)
  except (RuntimeError, errors.UserError) as error:  # It needs the most memory. The others are valid without it.
    print(f'this section was not measured: {error}')
  print(json.dumps(figures))
  return 0 if figures['dmlab'] else 1


if __name__ == '__main__':
  run_flags.define(BenchmarkConfig())
  run_flags.run_main(main)
