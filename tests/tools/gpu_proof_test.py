"""Tests `make gpu-proof` on the CPU in small, and what it does with rows that fail and with the end of its time."""

import contextlib
import io
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

from absl.testing import absltest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from scalable_agents.agents import impala
from scalable_agents.agents import laser  # The processes that measure are forked, and find it imported.
from scalable_agents.agents import r2d2
from scalable_agents.benchmark import device_parts
from scalable_agents.benchmark import matrix_products
from scalable_agents.benchmark import measuring_process
from scalable_agents.processes import python_path
from scalable_agents.records import errors
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.launch import forked_program
from scalable_agents.tools import card_runs
from scalable_agents.tools import gpu_proof
from scalable_agents.tools import proof_rows
from scalable_agents.training import train_loop

_IMPORTED = laser, r2d2, train_loop


def _start(module, arguments, environment, screen):
  """Starts a program as card_runs.start does, in a fraction of the time."""
  with mock.patch.dict(os.environ, environment), open(os.devnull, 'rb') as nothing:
    return forked_program.fork(module, arguments, (nothing.fileno(), screen.fileno(), screen.fileno()))


def _counts(device):
  """Returns how many operations the products of a step have, and how many TensorFlow's profiler counts."""
  card = device_parts.begin(device)
  settings = device_parts.Learner(torso='deep', batch_size=2, unroll_length=3)
  learner, batch = device_parts._make_one_learner(settings, card)
  with mock.patch.object(matrix_products, 'of_graph', wraps=matrix_products.of_graph) as of_graph:
    counts = matrix_products.of_gradient(impala.IMPALA, learner, batch)
  graph, = of_graph.call_args.args
  counted = sum(ops.get_stats_for_node_def(graph, operation.node_def, 'flops').value or 0
                for operation in matrix_products._computed(graph)
                if operation.type.startswith('Conv2D') or 'MatMul' in operation.type)
  return sum(count * product.operations for product, count in counts.items()), counted


def _fail(unused_argument=None):
  raise RuntimeError('first\nsecond')


def _die():
  print('F0000 00:00:1.2 1 a.cc:3] no ptxas', '*** Stack trace: ***', sep='\n', file=sys.stderr, flush=True)
  os.abort()


def _exhaust():
  raise tf.errors.ResourceExhaustedError(None, None, 'too large')


class GpuProofTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})  # To optimise takes longer here.
    fork = multiprocessing.get_context('fork')
    self.enter_context(mock.patch.object(measuring_process.multiprocessing, 'get_context', lambda _: fork))
    self.screen = self.enter_context(contextlib.redirect_stdout(io.StringIO()))
    self.output, self.trace = self.create_tempfile().full_path, self.create_tempdir().full_path

  def _written(self):
    with open(self.output, encoding='utf-8') as file:
      return json.load(file)

  def test_all_rows_in_small(self):
    self.enter_context(mock.patch.object(card_runs, 'start', _start))
    result = gpu_proof._result  # On a busy machine, each row needs more time.
    self.enter_context(mock.patch.object(gpu_proof, '_result', lambda row, deadline: result(row, deadline + 2000.)))
    plan = proof_rows.small_plan()
    gpu_proof.run(gpu_proof.Proof(60., self.output), 'cpu', plan, self.trace)  # A limit, which a busy machine needs.
    written = self._written()
    self.assertEqual((written['machine']['tensorflow'], written['machine']['device']), (tf.__version__, 'cpu'))
    rows = {row['name']: row for row in written['rows']}
    lines = self.screen.getvalue()
    for name, row in rows.items():
      wanted = 'not measured' if name.startswith('memory') else 'ok'
      self.assertEqual(row['status'], wanted, str(row))
      self.assertIn(f'{wanted:<13} {name} ', lines)
      self.assertTrue(row['figures'] or wanted != 'ok')
    self.assertLen(rows, len(plan.agreement) + 1 + 5 + len(plan.inference_sizes) + 1 + 3 + 4 + len(plan.rates))
    exact = rows['impala: 10 updates, float32, --xla=never']['figures']
    rounded = rows['impala: 10 updates, bfloat16, --xla=never']['figures']
    self.assertLess(exact['of_change'], 1e-5)
    self.assertBetween(rounded['of_change'], 1e-4, 0.1)
    two = rows['impala: 10 updates, two learners on one card']['figures']
    self.assertBetween(two['of_change'], 1e-9, 1e-5)  # They add up in another order.
    self.assertLen(list(pathlib.Path(self.trace).glob('plugins/profile/*/*.xplane.pb')), 1)
    pong, *resumed, free = (rows[name]['figures'] for name in rows if 'end to end' in name or 'resume' in name)
    for run in (pong, free):
      self.assertGreater(run['frames_per_second'], 0)
      self.assertStartsWith(run['line'], 'learns and acts on the CPU')
    for figures in resumed:
      self.assertGreater(figures['reached'], figures['killed_at'])
      self.assertStartsWith(figures['line'], 'learns and acts on the CPU')

  def test_operations_are_those_that_the_profiler_counts(self):
    with contextlib.closing(measuring_process.MeasuringProcess()) as process:
      ours, counted = process.call(_counts, 'cpu', deadline=time.monotonic() + waiting.PATIENCE_SECONDS)
    # The difference is in the small batched products of the heads. The profiler counts these otherwise.
    self.assertAlmostEqual(ours / counted, 1., delta=0.002)

  def test_work_that_overlaps_counts_once(self):
    space = xplane_pb2.XSpace()
    self.assertIsNone(device_parts.busy_seconds(space))
    for plane, line, spans in (('/device:GPU:0', 'Stream #7', [(0, 3), (1, 1), (10, 2)]),
                               ('/device:GPU:0', 'Stream #8', [(2, 2), (11, 4)]),
                               ('/device:GPU:0', 'XLA Modules', [(0, 100)]), ('/host:CPU', 'Stream #1', [(0, 100)])):
      found = [one for one in space.planes if one.name == plane] or [space.planes.add(name=plane)]
      events = found[0].lines.add(name=line, timestamp_ns=5).events
      for begin, duration in spans:
        events.add(offset_ps=begin * 10**12, duration_ps=duration * 10**12)
    self.assertEqual(device_parts.busy_seconds(space), 9.)  # 0 to 4, and 10 to 15.

  def test_rows_that_fail_say_why_and_the_others_go_on(self):
    proof = gpu_proof.Proof(8., self.output)

    def not_measured(unused_deadline):
      raise proof_rows.NotMeasured('no card')

    def rows(process):
      calls = {
          'raises': lambda end: process.call(_fail, deadline=end),
          'dies': lambda end: process.call(os.abort, deadline=end),
          'dies with a reason': lambda end: process.call(_die, deadline=end),
          'does not fit': lambda end: process.call(_exhaust, deadline=end),
          'cannot be': not_measured,
          'raises here': lambda end: _fail(),
          'is worse than wanted': lambda end: proof_rows.Measured('1', {'figure': 1}, False),
          'takes too long': lambda end: process.call(time.sleep, 60, deadline=end),
          'comes after': lambda end: proof_rows.Measured(process.call(str, 5, deadline=end), {}),
      }
      return [proof_rows.Row(name, 'all', measure, 0.2 if name == 'takes too long' else 60.)
              for name, measure in calls.items()]

    proof.measure(1., [rows])
    found = {row['name']: (row['status'], row['measured']) for row in self._written()['rows']}
    self.assertRegex(found.pop('takes too long')[1], r'^stopped after \d+ s$')
    self.assertRegex(found.pop('dies')[1], '^its process was killed by SIGABRT')
    self.assertEqual(found, {
        'raises': ('not ok', 'RuntimeError: first second'),
        'dies with a reason': ('not ok', 'its process was killed by SIGABRT: F0000 00:00:1.2 1 a.cc:3] no ptxas'),
        'does not fit': ('not measured', 'out of memory: ResourceExhaustedError: too large'),
        'cannot be': ('not measured', 'no card'),
        'raises here': ('not ok', 'RuntimeError: first second'),
        'is worse than wanted': ('not ok', '1'),
        'comes after': ('ok', '5'),
    })

  def test_rows_without_time_are_dropped(self):
    proof = gpu_proof.Proof(0., self.output)
    proof.measure(1., [lambda process: [proof_rows.Row('late', '', _fail)]])
    self.assertEqual([(row['status'], row['measured']) for row in proof.rows], [('not measured', 'no time left')])

  def test_no_row_begins_after_ctrl_c(self):
    proof, begun = gpu_proof.Proof(8., self.output), []

    def interrupt(unused_deadline):
      begun.append('first')
      signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
      waiting.wait_until(lambda: proof._is_over)
      raise measuring_process.PartError('its process was killed by SIGINT')

    with self.assertRaises(KeyboardInterrupt):
      proof.measure(1., [lambda process: [proof_rows.Row('first', '', interrupt), proof_rows.Row('second', '', _fail)]])
    self.assertEqual((begun, proof.rows), (['first'], []))

  def test_what_a_row_waits_for_ends_after_ctrl_c(self):
    proof, ended = gpu_proof.Proof(60., self.output), threading.Event()

    def interrupt(unused_deadline):
      signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
      self.assertTrue(ended.wait(60.))
      raise measuring_process.PartError('its process was killed by SIGINT')

    with self.assertRaises(KeyboardInterrupt):
      proof.measure(1., [lambda process: [proof_rows.Row('first', '', interrupt)]], end=ended.set)
    self.assertTrue(ended.is_set())

  def test_a_training_that_cannot_start_says_why_in_the_rows_of_its_resume(self):
    run = card_runs.Run(self.create_tempdir().full_path, 'no_such_program', lambda logdir: [])
    self.addCleanup(run.kill)
    run.start(False)
    with self.assertRaisesRegex(measuring_process.PartError, 'training ended with exit code 1: .*no_such_program'):
      card_runs.resume(run, False, time.monotonic() + 60.)

  def test_without_a_card_one_line_says_so(self):
    with self.assertRaisesRegex(errors.UserError, '^no card: .*; --device=cpu is a small trial on the CPU$'):
      gpu_proof.run(gpu_proof.Proof(8., self.output), 'gpu', proof_rows.full_plan(16), self.trace)

  def test_an_earlier_result_is_not_replaced(self):
    output = self.create_tempfile(content='measured on a card').full_path
    config = gpu_proof.GpuProofConfig(output=output)
    with mock.patch.object(gpu_proof.run_flags, 'config_from_flags', return_value=config):
      with self.assertRaisesRegex(errors.UserError, '^--output=.*: exists already: move it, or choose another file$'):
        gpu_proof.main()

  def test_the_program_reads_its_flags(self):
    done = subprocess.run([sys.executable, '-m', gpu_proof.__name__, '--minutes=0'], env=python_path.environment(),
                          text=True, capture_output=True, check=False)
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertRegex(done.stderr, '^error: --minutes=0.*: want a number of more than 0.*\n$')


if __name__ == '__main__':
  absltest.main()
