"""Tests of a small benchmark: the content of its last line, not the speeds."""

from concurrent import futures
import contextlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
import threading

from absl.testing import absltest
import psutil

from scalable_agents.actor import python_path
from scalable_agents.tools import benchmark
from scalable_agents.tools import benchmark_parts
from scalable_agents.tools import laser_parts
from scalable_agents.tools import r2d2_parts

_SMALL_R2D2 = r2d2_parts.pong('float32')._replace(learner_rows=2 + 4 + 1, config=dict(
    level_name='pong', torso='shallow', batch_size=2, burn_in=2, sequence_length=4, sequence_period=2, unroll_length=4,
    samples_per_period=0.5, replay_capacity=500, replay_minimum_size=4, save_replay=False))
_SMALL_LASER = laser_parts.pong('float32')
_SMALL_LASER = _SMALL_LASER._replace(learner_rows=5, config=_SMALL_LASER.config | dict(
    unroll_length=4, batch_size=5, replay_capacity=2_000, replay_minimum_size=100))


class BenchmarkTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    allowed = os.sched_getaffinity(0)
    self.addCleanup(os.sched_setaffinity, 0, allowed)
    os.sched_setaffinity(0, {min(allowed)})  # Each part runs on all cores that there are.

  def _figures_and_table(self, config):
    """Runs the benchmark with its parts in copies of this process, in which TensorFlow is imported and not yet used."""
    # Not at the top: processes that are spawned, as in other tests here, load this file.
    from scalable_agents.agents import impala  # noqa: F401  # The copies find it imported.
    context = multiprocessing.get_context('fork')
    fork = lambda processes: futures.ProcessPoolExecutor(processes, context, benchmark._begin_part)
    with contextlib.redirect_stdout(io.StringIO()) as screen, absltest.mock.patch.multiple(
        benchmark, _executor=fork), absltest.mock.patch.object(
            benchmark.run_flags, 'config_from_flags', return_value=config), absltest.mock.patch.multiple(
                r2d2_parts, pong=lambda precision: _SMALL_R2D2, SEQUENCES=10_000), absltest.mock.patch.object(
                    laser_parts, 'pong', return_value=_SMALL_LASER):
      self.assertEqual(benchmark.main(), 0)
    *table, last = screen.getvalue().splitlines()
    return json.loads(last), table

  def test_the_last_line_has_all_figures(self):
    figures, table = self._figures_and_table(
        benchmark.BenchmarkConfig(seconds=0.2, dmlab_unroll_length=5, dmlab_batch_size=2))
    self.assertLen([line for line in table if ' of the bound (wanted: ' in line], 4)
    self._check_r2d2(figures['r2d2'], figures['environment'], figures['cores'])
    self._check_laser(figures['laser'], figures['environment'], figures['cores'])
    dmlab = figures['dmlab']
    for section, environments in ((figures, [figures['environment']]), (dmlab, [])):
      steps, bound = section['end_to_end_steps_per_second'], section['bound_steps_per_second']
      self.assertAlmostEqual(section['share_of_bound'], steps / bound)
      occurring = str(max(1, round(section['end_to_end']['inference_batch_size'])))
      costs = (*environments, section['inference'][occurring], section['learner'])
      self.assertAlmostEqual(bound * sum(cost['cpu_seconds'] for cost in costs), figures['cores'])
      self.assertGreater(steps, 0)
      self.assertGreater(section['learner']['transitions_per_second'], 0)
      for part in section['inference'].values():
        self.assertGreater(part['rows_per_second'], 0)
      self.assertIn('time/learner_waits', section['end_to_end'])
    self.assertContainsSubset({'1', '8', '16', '32'}, figures['inference'])
    self.assertContainsSubset({'2'}, dmlab['inference'])
    self.assertContainsSubset(figures['shortfalls'], table)
    for learners, names in ((figures['learners'], {'impala', 'popart_impala', 'laser', 'pixel_control'}),
                            (dmlab['learners'], {'impala', 'popart_impala', 'pixel_popart'})):
      ratios = learners['ratio_to_impala']
      self.assertEqual((set(ratios), ratios['impala']), (names, 1.))
      self.assertGreater(min(ratios.values()), 0)
    self.assertLen([line for line in table if " of the speed of IMPALA's" in line], 5)
    for rate in (figures['environment']['vector_env_steps_per_second'], figures['dynamic_batcher']['calls_per_second'],
                 figures['actor_pool']['steps_per_second']):
      self.assertGreater(rate, 0)

  def _check_laser(self, figures, environment, cores):
    occurring = str(max(1, round(figures['end_to_end']['inference_batch_size'])))
    replayers = figures['replayers']
    cost = environment['cpu_seconds'] + figures['inference'][occurring]['cpu_seconds'] + (
        replayers['insert_cpu_seconds'] + 5 * figures['learner']['cpu_seconds'] + 4 * replayers['replay_cpu_seconds'])
    self.assertAlmostEqual(figures['bound_steps_per_second'] * cost, cores)
    self.assertAlmostEqual(figures['share_of_bound'],
                           figures['end_to_end']['steps_per_second'] / figures['bound_steps_per_second'])
    self.assertGreater(figures['replayers_with_lstm']['replay_cpu_seconds'], replayers['replay_cpu_seconds'])

  def _check_r2d2(self, figures, environment, cores):
    learned = figures['end_to_end']['sequences_learned_per_step']
    config = _SMALL_R2D2.config
    self.assertAlmostEqual(learned, config['samples_per_period'] / config['sequence_period'], delta=0.1)
    replay = figures['replay']
    cost = environment['cpu_seconds'] + figures['inference']['cpu_seconds'] + replay['insert_cpu_seconds'] + learned * (
        replay['sample_cpu_seconds'] + figures['learner']['cpu_seconds'])
    self.assertAlmostEqual(figures['bound_steps_per_second'] * cost, cores)
    self.assertAlmostEqual(figures['share_of_bound'],
                           figures['end_to_end']['steps_per_second'] / figures['bound_steps_per_second'])
    for name in ('inserted_per_second', 'sampled_per_second', 'sampled_bytes_per_second'):
      self.assertGreater(replay[name], 0)
    self.assertEqual(figures['priorities']['sequences'], 10_000)
    self.assertGreater(figures['priorities']['update_cpu_seconds'], 0)

  def test_regression_something_was_done_in_each_measurement(self):
    """On a busy machine, the time may pass before anything is done."""
    self.assertGreater(min(benchmark_parts.rate(lambda: sum(range(100_000)), 1, seconds=0)), 0)
    done = iter([3, 3, 3, 5])
    rates = benchmark_parts.rates_of_threads([threading.current_thread()], lambda: {'x': next(done)}, seconds=0)
    self.assertGreater(rates['x'], 0)
    never_started = threading.Thread()
    with self.assertRaisesRegex(RuntimeError, 'a thread that was measured has ended'):
      benchmark_parts.rates_of_threads([never_started], lambda: {'x': 3}, seconds=0)

  def test_the_other_sections_are_told_where_the_last_cannot_be_measured(self):
    screen = io.StringIO()
    flags = absltest.mock.patch.object(benchmark.run_flags, 'config_from_flags', lambda config: config())
    parts = absltest.mock.patch.multiple(benchmark, _measure_pong=lambda *_: {'share_of_bound': 0.9, 'environment': {}},
                                         _measure_r2d2=lambda *_: {}, _measure_laser=lambda *_: {},
                                         _measure_dmlab=absltest.mock.Mock(side_effect=RuntimeError('out of memory')))
    with flags, parts:
      with contextlib.redirect_stdout(screen):
        self.assertEqual(benchmark.main(), 1)
    *_, why, last = screen.getvalue().splitlines()
    self.assertEqual(why, 'this section was not measured: out of memory')
    self.assertEqual(json.loads(last)['share_of_bound'], 0.9)

  def test_what_onednn_would_bring_is_measured_where_it_is_off(self):
    cost = lambda seconds: {'cpu_seconds': seconds, 'vector_env_cpu_seconds': seconds}
    arguments = (1., benchmark_parts.pong('float32'), cost(1.), cost(0.2), cost(0.5))
    with contextlib.redirect_stdout(io.StringIO()) as screen, absltest.mock.patch.dict(
        os.environ, TF_ENABLE_ONEDNN_OPTS='0'):
      with absltest.mock.patch.multiple(benchmark, _alone=lambda _: False, _on_all_cores=lambda *_: cost(0.2)):
        lines = benchmark._shortfalls(*arguments)
      self.assertEqual(lines, ['learner: 2.5 times as fast with oneDNN, which TF_ENABLE_ONEDNN_OPTS=0 turns off: '
                               'unset it'])
      self.assertEqual(screen.getvalue().splitlines(), lines)
      with absltest.mock.patch.multiple(benchmark, _alone=lambda _: True):
        self.assertEmpty(benchmark._shortfalls(*arguments))

  def test_parts_compute_with_onednn_unless_the_user_has_switched_it_off(self):
    """tests/training/kernels_test.py has that TensorFlow follows the variable."""
    for before, wanted in (('', '1'), ('0', '0')):
      with absltest.mock.patch.dict(os.environ, TF_ENABLE_ONEDNN_OPTS=before):
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
    with open(pipe, 'wb'):  # Waits for the part to read.
      children = psutil.Process(measuring.pid).children()
      measuring.kill()
      measuring.wait()
      self.assertNotEmpty(children)
      self.assertEmpty(psutil.wait_procs(children, timeout=60)[1])


if __name__ == '__main__':
  absltest.main()
