"""Tests that programs of this project use oneDNN's kernels on every processor, unless the user switches them off."""

import os
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.processes import kernels


def _script(**variables):
  """Runs the file as a script, with these environment variables and without PYTHONPATH. Returns what it prints."""
  environment = {name: value for name, value in os.environ.items()
                 if name not in ('TF_ENABLE_ONEDNN_OPTS', 'PYTHONPATH')}
  return subprocess.run([sys.executable, '-P', kernels.__file__], env=environment | variables, text=True, check=True,
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


class KernelsTest(parameterized.TestCase):

  @parameterized.parameters((None, '1'), ('', '1'), ('1', '1'), ('0', '0'), ('false', 'false'))
  def test_onednn_is_chosen_unless_the_user_has_set_it(self, before, after):
    environment = {} if before is None else {'TF_ENABLE_ONEDNN_OPTS': before}
    with mock.patch.dict(os.environ, environment, clear=True):
      kernels.choose()
      self.assertEqual(os.environ, {'TF_ENABLE_ONEDNN_OPTS': after, 'TF_USE_LEGACY_KERAS': '1'})
    self.assertNotIn('tensorflow', sys.modules)

  def test_tensorflow_follows(self):
    self.assertStartsWith(_script(), 'oneDNN is on; the processor has ')
    self.assertStartsWith(_script(TF_ENABLE_ONEDNN_OPTS='0'), 'oneDNN is off (TF_ENABLE_ONEDNN_OPTS=0), so learning is '
                                                              'slow; the processor has ')

  def test_load_imports_tensorflow_but_not_what_keras_can_do_without(self):
    program = f"""
import gc, sys
from {kernels.__name__.rpartition('.')[0]} import kernels
kernels.load()
unneeded = {{'pandas', 'scipy', 'keras', 'matplotlib'}}
print('tensorflow' in sys.modules, sorted(unneeded & sys.modules.keys()), gc.isenabled(), gc.get_freeze_count() > 0)
"""
    done = subprocess.run([sys.executable, '-c', program], text=True, check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    self.assertEqual(done.stdout, 'True [] True True\n')

  @parameterized.parameters(
      ('fpu avx avx2 fma', 'avx, avx2, fma', 'use float32, bfloat16 is slow'),
      ('avx512_bf16 avx512f avx512_vnni', 'avx512f, avx512_vnni, avx512_bf16', 'bfloat16 is faster than float32'),
      ('fpu', 'unknown instructions', 'use float32, bfloat16 is slow'))
  def test_a_processor_is_described(self, flags, listed, precision):
    cpuinfo = self.create_tempfile(content=f'model name\t: avx9\nflags\t\t: {flags}\n\nflags\t\t: avx_vnni\n').full_path
    present = kernels.instruction_sets(cpuinfo)
    with mock.patch.multiple(kernels, is_onednn_on=lambda: True, instruction_sets=lambda: present):
      self.assertEqual(kernels.describe(), f'oneDNN is on; the processor has {listed}; --torso_precision: {precision}')

  def test_a_system_that_does_not_tell_is_no_error(self):
    self.assertEmpty(kernels.instruction_sets('/no/cpuinfo'))
    self.assertEmpty(kernels.instruction_sets(self.create_tempfile(content='Features\t: fp asimd\n').full_path))


if __name__ == '__main__':
  absltest.main()
