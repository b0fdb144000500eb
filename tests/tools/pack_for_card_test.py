"""Tests of what is packed for a machine with a card. The packages are too large to be installed here."""

import contextlib
import io
import pathlib
import struct
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tools import pack_for_card

_PTX, _MACHINE_CODE = 1, 2


def _entry(kind, card, code):
  """An entry of a fat binary, with a header of 64 bytes as in CUDA's libraries."""
  return struct.pack('<HHIQIIHHI32x', kind, 0x101, 64, len(code), 0, 0, 0, 0, card) + code


def _fat_binary(*entries):
  body = b''.join(entries)
  return struct.pack('<IHHQ', 0xBA55ED50, 1, 16, len(body)) + body


class KeepCapabilityTest(parameterized.TestCase):

  @parameterized.parameters((90, b'NINETY'), (86, b'EIGHTY'), (89, b'EIGHTY'), (75, b'SEVENTY'), (100, b'SIXTY'))
  def test_only_the_code_that_the_driver_would_choose_is_left(self, capability, kept):
    codes = {b'SEVENTY': (_MACHINE_CODE, 70), b'EIGHTY': (_MACHINE_CODE, 80), b'NINETY': (_MACHINE_CODE, 90),
             b'FIFTY': (_PTX, 50), b'SIXTY': (_PTX, 60), b'TOO NEW': (_PTX, 120)}
    fat = _fat_binary(*(_entry(kind, card, code) for code, (kind, card) in codes.items()))
    before = b'text' + fat + b'\0\0\0\0' + fat + b'data'
    library = pathlib.Path(self.create_tempfile(content=before, mode='wb').full_path)
    pack_for_card.keep_capability(library, capability)
    wanted = before
    for code in codes.keys() - {kept}:
      wanted = wanted.replace(code, bytes(len(code)))
    self.assertEqual(library.read_bytes(), wanted)

  @parameterized.parameters(
      b'', b'no fat binary', _fat_binary(_entry(3, 80, b'another kind')),
      _fat_binary(_entry(_MACHINE_CODE, 80, b'cut off'))[:-1],
      _fat_binary(_entry(_MACHINE_CODE, 80, b'code'))[:40])
  def test_what_it_cannot_read_stays_as_it_is(self, content):
    library = pathlib.Path(self.create_tempfile(content=b'start' + content, mode='wb').full_path)
    pack_for_card.keep_capability(library, 90)
    self.assertEqual(library.read_bytes(), b'start' + content)


class CopyPythonTest(absltest.TestCase):

  def test_the_copy_runs_alone(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    pack_for_card.copy_python(folder / 'python', folder / 'libraries')
    show = 'import ctypes, json, lzma, os, ssl; print(json.__file__, os.environ.get("HOME"))'
    done = subprocess.run([folder / 'python/bin/python3', '-c', show], capture_output=True, text=True, check=False,
                          env={'LD_LIBRARY_PATH': str(folder / 'libraries')})
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertStartsWith(done.stdout, f'{folder}/python/lib/python3')


class MainTest(parameterized.TestCase):

  @parameterized.parameters(
      (['nothing.whl', 'pieces'], 'nothing.whl: no such file$'), ([__file__, 'pieces', 'new'], 'new: want .* 9.0$'),
      ([__file__, '.'], 'File exists'), ([], 'pieces'))
  def test_bad_arguments_end_with_a_message(self, arguments, message):
    with mock.patch.object(sys, 'argv', ['pack_for_card', *arguments]), self.assertRaisesRegex(SystemExit, message):
      pack_for_card.main()

  @parameterized.parameters(
      (pack_for_card._ProgramError('pip failed, see above'), 'pip failed, see above'),
      (OSError('disk full'), 'disk full'), (KeyboardInterrupt(), 130))
  def test_the_same_command_can_be_tried_again_after_a_failure(self, failure, code):
    pieces = pathlib.Path(self.create_tempdir().full_path, 'pieces')
    with mock.patch.object(sys, 'argv', ['pack_for_card', __file__, str(pieces)]), mock.patch.object(
        pack_for_card, '_pack', side_effect=failure):
      for _ in range(2):
        with self.assertRaises(SystemExit) as left:
          pack_for_card.main()
        self.assertEqual(left.exception.code, code)
        self.assertFalse(pieces.exists())

  def test_a_folder_that_was_there_before_stays(self):
    folder = self.create_tempdir()
    folder.create_file('part.000')
    with mock.patch.object(sys, 'argv', ['pack_for_card', __file__, folder.full_path]), self.assertRaisesRegex(
        SystemExit, 'File exists'):
      pack_for_card.main()
    self.assertTrue(pathlib.Path(folder.full_path, 'part.000').exists())

  def test_a_program_that_fails_is_named(self):
    with self.assertRaisesRegex(pack_for_card._ProgramError, '^pip failed, see above$'):
      pack_for_card._run('pip', ['no_such_command'], stderr=subprocess.DEVNULL)
    with contextlib.redirect_stderr(io.StringIO()) as screen, self.assertRaisesRegex(
        pack_for_card._ProgramError, '^sh failed, see above$'):
      pack_for_card._run('sh', ['-c', 'echo why >&2; exit 3'], capture_output=True, text=True)
    self.assertEqual(screen.getvalue(), 'why\n')


if __name__ == '__main__':
  absltest.main()
