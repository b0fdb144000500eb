"""Tests of processes/devices.py. Cards are simulated: files of the driver, and TensorFlow's lists of devices."""

import contextlib
import io
import os
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from scalable_agents.processes import cards
from scalable_agents.processes import device_report
from scalable_agents.processes import devices
from scalable_agents.processes import kernels
from scalable_agents.records import errors


class DevicesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._system = self.create_tempdir()
    self.enter_context(mock.patch.object(cards, '_SYSTEM', pathlib.Path(self._system.full_path)))
    environment = self.enter_context(mock.patch.dict(os.environ))
    environment.pop('CUDA_VISIBLE_DEVICES', None)

  def _put_card_in(self, model='NVIDIA H100', devices=('nvidia0',)):
    self._system.create_file('proc/driver/nvidia/gpus/0000:01:00.0/information',
                             content=f'Model: \t\t {model}\nIRQ: 7\nnonsense\n')
    for device in ('nvidiactl', *devices):
      self._system.create_file(f'dev/{device}')

  def _let_tensorflow_have(self, *models, capability=(9, 0)):
    gpus = [tf.config.PhysicalDevice(f'/physical_device:GPU:{i}', 'GPU') for i in range(len(models))]
    self.enter_context(mock.patch.object(tf.config, 'list_physical_devices', return_value=gpus))
    self.enter_context(mock.patch.object(tf.config, 'list_logical_devices', return_value=gpus))
    self.enter_context(mock.patch.object(
        tf.config.experimental, 'get_device_details',
        lambda gpu: {'device_name': models[gpus.index(gpu)], 'compute_capability': capability}))

  def test_without_a_card_all_is_on_the_cpu(self):
    self.assertEqual([devices.choose(wanted) for wanted in ('auto', 'cpu')], ['/CPU:0', '/CPU:0'])
    self.assertEqual(devices.describe(['/CPU:0'], '/CPU:0'), 'learns and acts on the CPU')
    self.assertEqual(devices.describe(acts='/CPU:0'), 'acts on the CPU')
    with self.assertRaisesRegex(errors.UserError, '=gpu: this machine has no NVIDIA card: choose auto or cpu$'):
      devices.choose('gpu')

  def test_the_line_of_a_process_that_does_not_import_tensorflow(self):
    with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=''):
      self.assertStartsWith(device_report.read(), 'learns and acts on the CPU')

  def test_nothing_is_told_if_tensorflow_does_not_start(self):
    with mock.patch.object(device_report, 'read', return_value=''), contextlib.redirect_stdout(io.StringIO()) as screen:
      device_report.tell()
    self.assertEqual(screen.getvalue(), '')

  def test_a_card_that_is_used_is_named(self):
    self._put_card_in()
    self._let_tensorflow_have('NVIDIA H100', 'NVIDIA A100')
    self.assertEqual([devices.choose(wanted) for wanted in ('auto', 'cpu', 'gpu')], ['/GPU:0', '/CPU:0', '/GPU:0'])
    self.assertEqual(devices.describe(['/GPU:0'], '/GPU:0'), 'learns and acts on GPU:0 (NVIDIA H100)')
    self.assertEqual(devices.describe(['/GPU:0'], '/CPU:0'), 'learns on GPU:0 (NVIDIA H100), acts on the CPU')
    self.assertEqual(devices.describe([f'/job:localhost/replica:0/task:0/device:GPU:{i}' for i in range(2)]),
                     'learns on GPU:0 (NVIDIA H100) and GPU:1 (NVIDIA A100)')

  @parameterized.parameters(
      (dict(CUDA_VISIBLE_DEVICES='-1'), True, True, 'CUDA_VISIBLE_DEVICES hides it; unset CUDA_VISIBLE_DEVICES'),
      ({}, False, True, "this TensorFlow is built without CUDA; pip install 'tensorflow.*and-cuda.*'"),
      ({}, True, False, 'TensorFlow has no CUDA libraries; (make setup GPU=1|.*pip install .*and-cuda.*)'),
      ({}, True, True, 'TensorFlow cannot use it; its log, and .*, may say why'))
  def test_a_card_that_is_not_used_has_a_reason(self, variables, has_cuda, has_libraries, reason):
    self._put_card_in('NVIDIA GeForce RTX 3060')
    with mock.patch.dict(os.environ, variables), mock.patch.object(
        tf.test, 'is_built_with_cuda', return_value=has_cuda), mock.patch.object(
            cards, '_missing_files', lambda name: [] if has_libraries else [name]):
      wanted = f'the NVIDIA GeForce RTX 3060 of this machine is not used: {reason}$'
      self.assertRegex(devices.describe(['/CPU:0'], '/CPU:0'), f'^learns and acts on the CPU: {wanted}')
      with self.assertRaisesRegex(errors.UserError, f'^--inference_device=gpu: {wanted}'):
        devices.choose('gpu')

  def test_a_container_or_job_that_was_given_no_card(self):
    self._put_card_in(devices=())
    self.assertEqual(devices.why_unused(), 'the NVIDIA H100 of this machine is not used: this container or job was '
                                           'given no card; docker run --gpus=all, sbatch --gres=gpu:1')

  def test_a_card_in_windows_subsystem_for_linux(self):
    self._system.create_file('dev/dxg')
    self.assertEqual(cards.models(), [])  # As with a card of another maker.
    self._system.create_file('usr/lib/wsl/lib/nvidia-smi')
    with mock.patch.object(cards, '_missing_files', lambda name: [name]):
      self.assertStartsWith(devices.why_unused(), 'the NVIDIA card of this machine is not used: TensorFlow has no CUDA')

  def test_a_container_with_devices_but_without_the_drivers_files(self):
    for number in range(2):
      self._system.create_file(f'dev/nvidia{number}')
    self._system.create_file('dev/nvidiactl')
    self.assertEqual(cards.models(), ['NVIDIA card'] * 2)

  @parameterized.parameters(((8, 0), 'bfloat16'), ((9, 0), 'bfloat16'), ((7, 5), 'float32'))
  def test_cards_from_ampere_on_compute_in_bfloat16(self, capability, precision):
    self._let_tensorflow_have('a card', capability=capability)
    self.assertEqual(devices.fastest_precision('/GPU:0'), precision)

  @parameterized.parameters((True, 'bfloat16'), (False, 'float32'))
  def test_processors_compute_in_bfloat16_if_they_have_instructions_for_it(self, has_bfloat16, precision):
    self._let_tensorflow_have('a card')
    with mock.patch.object(kernels, 'has_bfloat16', return_value=has_bfloat16):
      self.assertEqual(devices.fastest_precision('/job:localhost/replica:0/task:0/device:CPU:0'), precision)


if __name__ == '__main__':
  absltest.main()
