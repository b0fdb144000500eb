"""Tests the benchmark by its parts: that each part measures something, and what the sections make of the numbers."""

from concurrent import futures
import contextlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil

from scalable_agents.benchmark import benchmark_parts
from scalable_agents.benchmark import in_turns
from scalable_agents.benchmark import laser_parts
from scalable_agents.benchmark import r2d2_parts
from scalable_agents.processes import kernels
from scalable_agents.processes import machine
from scalable_agents.processes import python_path
from scalable_agents.records import errors
from scalable_agents.tests.actor import waiting
from scalable_agents.tools import benchmark

_SECONDS = 0.05
_PONG = benchmark_parts.pong('float32')
_PONG = _PONG._replace(learner_rows=5, config=_PONG.config | dict(unroll_length=4, batch_size=2))
_DMLAB = benchmark_parts.dmlab('float32', 2, 2)
_R2D2 = r2d2_parts.pong('float32')._replace(learner_rows=2 + 4 + 1, config=dict(
    level_name='pong', torso='shallow', batch_size=2, burn_in=2, sequence_length=4, sequence_period=2, unroll_length=4,
    samples_per_period=0.5, replay_capacity=500, replay_minimum_size=4, save_replay=False))
_LASER = laser_parts.pong('float32')
_LASER = _LASER._replace(learner_rows=5, config=_LASER.config | dict(
    unroll_length=4, batch_size=5, replay_capacity=2_000, replay_minimum_size=100))
_WORKLOADS = ('pong', _PONG), ('dmlab', _DMLAB), ('r2d2', _R2D2), ('laser', _LASER)


class PartsTest(parameterized.TestCase):
  """Each part once, in a copy of this process, in which TensorFlow is imported and not yet used."""

  def setUp(self):
    super().setUp()
    # Not at the top: processes that are spawned, as in another test here, load this file.
    import tensorflow as tf

    from scalable_agents.agents import impala  # noqa: F401  # The copies find it imported.
    # To optimise a graph takes longer here than to run it.
    tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})
    fork = lambda processes: futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context('fork'), benchmark._begin_part)
    self.enter_context(mock.patch.object(benchmark, '_executor', fork))

  @parameterized.named_parameters(
      ('environment', benchmark_parts.environment), ('learner', benchmark_parts.learner, _DMLAB),
      ('learner_with_onednn', benchmark_parts.learner_with_onednn, _PONG), ('batcher', benchmark_parts.batcher),
      ('actor_pool', benchmark_parts.actor_pool, _PONG), ('r2d2_learner', r2d2_parts.learner, _R2D2),
      ('replay_costs', r2d2_parts.replay_costs, _R2D2), ('replay_at_once', r2d2_parts.replay_at_once, _R2D2))
  def test_a_part_has_positive_figures(self, part, *arguments):
    figures = benchmark._alone(part, _SECONDS, *arguments)
    self.assertGreater(min(figures.values()), 0)

  @parameterized.named_parameters(*_WORKLOADS)
  def test_inference_is_measured_at_each_batch_size(self, workload):
    figures = benchmark._alone(benchmark_parts.inference, _SECONDS, workload, [1, 3])
    self.assertEqual(set(figures), {1, 3})
    for figure in figures.values():
      self.assertGreater(min(figure.values()), 0)

  def test_learners_are_compared_with_that_of_impala(self):
    others = {'popart_impala', 'laser', 'pixel_control', 'pixel_popart'}
    rates, ratios = benchmark._alone(benchmark_parts.learners, _SECONDS, _PONG, sorted(others))
    self.assertEqual((set(rates), set(ratios), ratios['impala']), (others | {'impala'}, others | {'impala'}, 1.))
    self.assertGreater(min(*rates.values(), *ratios.values()), 0)

  def test_an_lstm_makes_replayers_slower(self):
    without, with_lstm = (benchmark._alone(laser_parts.replayers, _SECONDS, _LASER, use_lstm)
                          for use_lstm in (False, True))
    self.assertGreater(min(without.values()), 0)
    self.assertGreater(with_lstm['replay_cpu_seconds'], without['replay_cpu_seconds'])

  def test_priorities_are_those_of_a_full_replay(self):
    with mock.patch.object(r2d2_parts, 'SEQUENCES', 10_000):
      figures = benchmark._alone(r2d2_parts.priorities, _SECONDS)
    self.assertEqual(figures['sequences'], 10_000)
    self.assertGreater(min(figures.values()), 0)

  @parameterized.named_parameters(*_WORKLOADS)
  def test_the_settings_of_a_whole_training_are_those_of_its_agent(self, workload):
    definition, config = benchmark_parts.definition_and_config(workload)
    definition.validate(config)
    with mock.patch.object(benchmark_parts.training_rate, 'steady_rows') as steady_rows:
      benchmark_parts.training_rows(1., workload)
    program, *arguments = steady_rows.call_args.args[0]({'logdir': 'there'})
    if workload is _DMLAB:
      self.assertEqual([json.loads(argument) for argument in arguments], [workload.config, {'logdir': 'there'}])
    else:
      self.assertEqual(program, f'scalable_agents.agents.{definition.name}_atari57')
      self.assertCountEqual(arguments, [f'--{name}={value}' for name, value in workload.config.items()] + [
          '--logdir=there'])


# Two rows of metrics.jsonl with 10 seconds between them, and what the parts return.
_ROWS = [{'learner_steps': 10, 'environment_frames': 1_000, 'wall_seconds': 5., 'sequences_sampled': 100,
          'inference_batch_size': None, 'time/learner_waits': 0.5},
         {'learner_steps': 30, 'environment_frames': 9_000, 'wall_seconds': 15., 'sequences_sampled': 300,
          'inference_batch_size': 7.8, 'time/learner_waits': 0.7}]
_FIGURES = {
    benchmark_parts.environment: lambda _: {
        'steps_per_second': 500., 'cpu_seconds': 2e-3, 'emulator_cpu_seconds': 1.6e-3, 'ratio_to_emulator': 1.25,
        'vector_env_steps_per_second': 400., 'vector_env_cpu_seconds': 3e-3},
    benchmark_parts.inference: lambda _, workload, sizes: {
        size: {'rows_per_second': 2e3, 'cpu_seconds': 1e-4 * size} for size in sizes},
    benchmark_parts.learner: lambda *_: {'transitions_per_second': 1e3, 'cpu_seconds': 1e-3},
    benchmark_parts.learners: lambda _, workload, names: (
        dict.fromkeys(('impala', *names), 4.), {'impala': 1.} | dict.fromkeys(names, 0.5)),
    benchmark_parts.batcher: lambda _: {'calls_per_second': 9.},
    benchmark_parts.actor_pool: lambda *_: {'steps_per_second': 8.},
    kernels.is_onednn_on: lambda: True,
    r2d2_parts.learner: lambda *_: {'sequences_per_second': 50., 'cpu_seconds': 0.02},
    r2d2_parts.replay_costs: lambda *_: {'insert_cpu_seconds': 1e-5, 'sample_cpu_seconds': 1e-3},
    r2d2_parts.replay_at_once: lambda *_: {
        'inserted_per_second': 6., 'sampled_per_second': 5., 'sampled_bytes_per_second': 4e9},
    r2d2_parts.priorities: lambda _: {
        'sequences': 1_000_000, 'sample_cpu_seconds': 1e-6, 'update_cpu_seconds': 2e-6},
    laser_parts.replayers: lambda _, workload, use_lstm: {
        'insert_cpu_seconds': 1e-5, 'replay_cpu_seconds': 2e-4 if use_lstm else 1e-4}}
_CORES = 4


class BenchmarkTest(absltest.TestCase):

  def _main(self, code=0, **patches):
    """Runs the benchmark with made-up figures. Returns the table's lines, and the numbers of the last line."""
    run = lambda part, *arguments: _FIGURES[part](*arguments)
    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.multiple(
        benchmark, _on_all_cores=run, _alone=run, **patches), mock.patch.object(
            benchmark_parts, 'training_rows', return_value=_ROWS), mock.patch.object(
                machine, 'num_cores', return_value=_CORES), mock.patch.object(
                    benchmark.run_flags, 'config_from_flags', lambda config: config()):
      self.assertEqual(benchmark.main(), code)
    *table, last = screen.getvalue().splitlines()
    return table, json.loads(last)

  def test_the_bounds_are_the_sums_of_the_parts(self):
    table, figures = self._main()
    inference, learner, environment = 8e-4, 1e-3, 2e-3  # 7.8 rows are inferred at a time, about 8.
    of_frames = 8_000 / 4 / 10.  # Agent steps per second; an agent step has four frames.
    learned = 200 / 2_000.  # Sequences per agent step.
    for section, steps, cost in (
        (figures, 20 * 20 * 32 / 10., environment + inference + learner),
        (figures['dmlab'], 20 * 100 * 32 / 10., inference + learner),
        (figures['r2d2'], of_frames, environment + inference + 1e-5 + learned * (1e-3 + 0.02)),
        # An update has 8 new and 32 replayed unrolls.
        (figures['laser'], of_frames, environment + inference + 1e-5 + 5 * learner + 4 * 1e-4)):
      self.assertAlmostEqual(section['bound_steps_per_second'], _CORES / cost)
      self.assertAlmostEqual(section['share_of_bound'], steps * cost / _CORES)
      measured = section['end_to_end']
      self.assertAlmostEqual(measured['steps_per_second'], steps)
      self.assertEqual(measured['inference_batch_size'], 7.8)
    for section in (figures, figures['dmlab']):
      self.assertAlmostEqual(section['end_to_end_steps_per_second'], section['end_to_end']['steps_per_second'])
      self.assertAlmostEqual(section['end_to_end']['time/learner_waits'], 0.6)
    self.assertAlmostEqual(figures['r2d2']['end_to_end']['sequences_learned_per_step'], learned)
    self.assertLen([line for line in table if ' of the bound (wanted: ' in line], 4)
    self.assertLen([line for line in table if " of the speed of IMPALA's" in line], 5)

  def test_the_last_line_has_all_figures(self):
    table, figures = self._main()
    self.assertEqual((figures['cores'], figures['torso_precision']), (_CORES, 'float32'))
    self.assertEqual(set(figures['inference']), {'1', '8', '16', '32'})
    self.assertEqual(set(figures['dmlab']['inference']), {'8', '32'})
    for learners, names in ((figures['learners'], {'impala', 'popart_impala', 'laser', 'pixel_control'}),
                            (figures['dmlab']['learners'], {'impala', 'popart_impala', 'pixel_popart'})):
      self.assertEqual((set(learners['ratio_to_impala']), set(learners['transitions_per_second'])), (names, names))
    self.assertEqual((figures['environment']['vector_env_steps_per_second'],
                      figures['dynamic_batcher']['calls_per_second'], figures['actor_pool']['steps_per_second']),
                     (400., 9., 8.))
    self.assertEqual(figures['r2d2']['replay'], _FIGURES[r2d2_parts.replay_costs]() | (
        _FIGURES[r2d2_parts.replay_at_once]()))
    self.assertEqual(figures['r2d2']['priorities'], _FIGURES[r2d2_parts.priorities](None))
    self.assertEqual([figures['laser'][name]['replay_cpu_seconds'] for name in ('replayers', 'replayers_with_lstm')],
                     [1e-4, 2e-4])
    self.assertContainsSubset(['  the environment takes 1.250 times as long, measured in turns'], table)
    self.assertNotEmpty(figures['shortfalls'])
    self.assertContainsSubset(figures['shortfalls'], table)

  def test_the_other_sections_are_told_where_the_last_cannot_be_measured(self):
    table, figures = self._main(code=1, _measure_dmlab=mock.Mock(side_effect=RuntimeError('out of memory')))
    self.assertEqual(table[-1], 'this section was not measured: out of memory')
    self.assertIsNone(figures['dmlab'])
    self.assertContainsSubset({'share_of_bound', 'r2d2', 'laser'}, figures)

  def test_a_part_on_all_cores_has_the_means_of_its_figures(self):
    with mock.patch.object(machine, 'num_cores', return_value=2):
      self.assertEqual(benchmark._on_all_cores(json.loads, '{"rates": [1, 3]}'), {'rates': [1., 3.]})

  def test_regression_something_was_done_in_each_measurement(self):
    """On a busy machine, the time may pass before anything is done."""
    self.assertGreater(min(benchmark_parts.rate(lambda: sum(range(100_000)), 1, seconds=0)), 0)
    done = iter([3, 3, 3, 5])
    rates = benchmark_parts.rates_of_threads([threading.current_thread()], lambda: {'x': next(done)}, seconds=0)
    self.assertGreater(rates['x'], 0)
    never_started = threading.Thread()
    with self.assertRaisesRegex(RuntimeError, 'a thread that was measured has ended'):
      benchmark_parts.rates_of_threads([never_started], lambda: {'x': 3}, seconds=0)

  def test_what_onednn_would_bring_is_measured_where_it_is_off(self):
    cost = lambda seconds: {'cpu_seconds': seconds, 'vector_env_cpu_seconds': seconds}
    arguments = (1., benchmark_parts.pong('float32'), cost(1.), cost(0.2), cost(0.5))
    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.dict(
        os.environ, TF_ENABLE_ONEDNN_OPTS='0'):
      with mock.patch.multiple(benchmark, _alone=lambda _: False, _on_all_cores=lambda *_: cost(0.2)):
        lines = benchmark._shortfalls(*arguments)
      self.assertEqual(lines, ['learner: 2.5 times as fast with oneDNN, which TF_ENABLE_ONEDNN_OPTS=0 turns off: '
                               'unset it'])
      self.assertEqual(screen.getvalue().splitlines(), lines)
      with mock.patch.multiple(benchmark, _alone=lambda _: True):
        self.assertEmpty(benchmark._shortfalls(*arguments))

  def test_parts_compute_with_onednn_unless_the_user_has_switched_it_off(self):
    """tests/processes/kernels_test.py has that TensorFlow follows the variable."""
    for before, wanted in (('', '1'), ('0', '0')):
      with mock.patch.dict(os.environ, TF_ENABLE_ONEDNN_OPTS=before):
        self.assertEqual(benchmark._alone(os.getenv, 'TF_ENABLE_ONEDNN_OPTS'), wanted)

  def test_the_program_reads_its_flags(self):
    done = subprocess.run([sys.executable, '-m', benchmark.__name__, '--seconds=0'], env=python_path.environment(),
                          text=True, capture_output=True, check=False)
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertRegex(done.stderr, '^error: --seconds=0.*: want a number from 0.1 .*\n$')

  def test_regression_a_part_ends_with_the_benchmark(self):
    pipe = os.path.join(self.create_tempdir().full_path, 'pipe')
    os.mkfifo(pipe)
    program = ('import pathlib, sys\n'
               'from scalable_agents.tools import benchmark\n'
               'benchmark._alone(pathlib.Path(sys.argv[1]).read_bytes)')
    measuring = subprocess.Popen([sys.executable, '-c', program, pipe], env=python_path.environment())
    self.addCleanup(measuring.kill)
    with waiting.start(open, pipe, 'wb')():  # Waits for the part to read.
      children = psutil.Process(measuring.pid).children()
      measuring.kill()
      measuring.wait()
      self.assertNotEmpty(children)
      self.assertEmpty(psutil.wait_procs(children, timeout=300)[1])


class InTurnsTest(parameterized.TestCase):
  """--compare: two checkouts in turns."""

  def _checkout(self, name, steps_per_second):
    """Makes a folder whose Python writes its arguments to a file and prints the figures of a benchmark."""
    folder = self.create_tempdir(name).full_path
    os.makedirs(f'{folder}/.venv/bin')
    python = f'{folder}/.venv/bin/python'
    with open(python, 'w', encoding='utf-8') as script:
      script.write(f'#!/bin/sh\necho "$@" >> {folder}/calls\necho "$PYTHONPATH,$PYTHONSAFEPATH" > {folder}/path\n'
                   f'echo a line\necho \'{{"end_to_end": {{"steps_per_second": {steps_per_second}}}}}\'\n')
    os.chmod(python, 0o700)
    return folder, python

  def test_two_checkouts_are_measured_in_turns_with_the_settings_of_the_file(self):
    (old, _), (new, python) = self._checkout('old', 200), self._checkout('new', 300)
    file = self.create_tempfile(content=json.dumps({
        'checkout': old, 'seconds': 0.5, 'torso_precision': 'bfloat16', 'dmlab_unroll_length': 7,
        'dmlab_batch_size': 3})).full_path
    with contextlib.redirect_stdout(io.StringIO()) as screen, \
         mock.patch.object(benchmark.sys, 'executable', python), mock.patch.dict(os.environ, PYTHONPATH='/new'):
      benchmark._compare(file, turns=2)
    *_, row, last = screen.getvalue().splitlines()
    self.assertEqual(row.split(), ['end_to_end/steps_per_second', '1.500', '1.500', 'to', '1.500'])
    np.testing.assert_allclose(json.loads(last)['end_to_end/steps_per_second'], [1.5] * 3)
    for folder in (old, new):
      with open(f'{folder}/calls', encoding='utf-8') as calls:
        self.assertEqual(calls.read().splitlines(), 2 * [
            '-m scalable_agents.tools.benchmark --seconds=0.5 --torso_precision=bfloat16 --dmlab_unroll_length=7 '
            '--dmlab_batch_size=3'])
    with open(f'{old}/path', encoding='utf-8') as path:
      self.assertEqual(path.read(), ',1\n')  # It must import neither the new one's code nor that of the current folder.

  def test_what_changes_the_speed_of_the_machine_does_not_change_the_ratio(self):
    random = np.random.RandomState(0)
    order, pace = [], 1.
    def measure(name, speed):
      nonlocal pace
      if len(order) % 2 == 0:  # Another turn: the machine is up to four times as slow as before.
        pace = random.uniform(0.25, 1.)
      order.append(name)
      return {'part': {'cpu_seconds': 1 / (speed * pace * random.uniform(0.97, 1.03)), 'steps_per_second': 1.}}
    (figure, ratio, low, high), = in_turns.compare(
        lambda: measure('old', 100.), lambda: measure('new', 120.), turns=8)
    self.assertEqual((figure, order[:4]), ('part/cpu_seconds', ['old', 'new', 'new', 'old']))
    self.assertBetween(1.2, low, high)
    self.assertBetween(ratio, low, high)
    self.assertLess(high - low, 0.1)

  def test_the_interval_of_two_turns_is_wide(self):
    speeds = iter([100., 110., 100., 121.])  # Old, new, new, old: ratios of 1.1 and 1 / 1.21.
    measure = lambda: {'steps_per_second': next(speeds)}
    (_, ratio, low, high), = in_turns.compare(measure, measure, turns=2)
    logs = np.log([1.1, 1 / 1.21])
    half = 12.7062 * abs(logs[0] - logs[1]) / 2  # A table of Student's t: one degree of freedom.
    np.testing.assert_allclose(np.log([ratio, low, high]), np.mean(logs) + half * np.array([0, -1, 1]), rtol=1e-4)
    speeds = iter([100., 110.])
    np.testing.assert_allclose(in_turns.compare(measure, measure, turns=1)[0][1:], [1.1, np.nan, np.nan])

  def test_speeds_are_of_this_project_and_named_once(self):
    figures = {'bound_steps_per_second': 9., 'end_to_end_steps_per_second': 8., 'cores': 2,
               'end_to_end': {'steps_per_second': 8.}, 'dmlab': None, 'inference': {'16': {'cpu_seconds': 0.5}},
               'environment': _FIGURES[benchmark_parts.environment](None),
               'learners': {'transitions_per_second': {'laser': 7.}, 'ratio_to_impala': {'laser': 0.5}}}
    self.assertEqual(in_turns.speeds(figures), {
        'end_to_end/steps_per_second': 8., 'inference/16/cpu_seconds': 2., 'environment/cpu_seconds': 500.,
        'learners/transitions_per_second/laser': 7.})

  def test_a_file_of_this_checkout_or_of_something_else(self):
    settings = dict(seconds=1, torso_precision='float32', dmlab_unroll_length=7, dmlab_batch_size=3)
    of = lambda folder: self.create_tempfile(content=json.dumps(dict(settings, checkout=folder))).full_path
    for file, message in (('/nowhere', 'want a file with the last line .*FileNotFoundError'),
                          (self.create_tempfile(content='[1]').full_path, 'want a file with the last line'),
                          (self.create_tempfile(content='{"x": 1}').full_path, "want a file .* KeyError: 'checkout'"),
                          (of(in_turns.checkout()), 'it was made in this checkout'),
                          (of('/nowhere'), '/nowhere: want a checkout of the project in which `make setup` was run')):
      with self.assertRaisesRegex(errors.UserError, message), contextlib.redirect_stdout(io.StringIO()):
        benchmark._compare(file, turns=1)

  def test_a_benchmark_that_fails_ends_the_comparison(self):
    with self.assertRaisesRegex(errors.UserError, '^/bin/sh: the benchmark ended with exit code 3: no memory$'):
      in_turns.measure(['/bin/sh', '-c', 'echo no memory; exit 3'], dict(os.environ))


if __name__ == '__main__':
  absltest.main()
