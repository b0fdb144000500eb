"""Tests of environments/level_cache.py."""

import io
import os
import signal
import stat
import subprocess
import sys
import zipfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.environments import level_cache
from scalable_agents.environments import long_work
from scalable_agents.processes import python_path
from scalable_agents.tests.actor import waiting

_KEY = 'explore_maze_noaas_807bdf61459942cd2f7b4f92f2d18b62'

# A program that repeatedly writes and fetches maps of a few keys, like Lab. Each fetched map must be a whole map of its
# key. The program prints how many maps it fetched.
_WRITER = '''
import os, sys
from scalable_agents.environments import level_cache
from scalable_agents.tests.environments import level_cache_test
folder, scratch, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
cache = level_cache.LevelCache(folder)
path = os.path.join(scratch, f'{number}.pk3')
fetched = 0
print('begins', flush=True)
for turn in range(int(sys.argv[4])):
  key = f'maze_{turn % 3}'
  if cache.fetch(key, path):
    fetched += 1
    with open(path, 'rb') as file:
      assert level_cache_test.read_map(file.read()).startswith(key.encode())
  with open(path, 'wb') as file:
    file.write(level_cache_test.make_map(f'{key} of {number}, {turn}'.encode() * 5000))
  cache.write(key, path)
print(fetched)
'''


def make_map(bsp, **other_files):
  """Returns a pk3 file like those of Lab's compiler."""
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, 'w', zipfile.ZIP_DEFLATED) as archive:
    archive.writestr('maps/maze.bsp', bsp)
    for name, content in other_files.items():
      archive.writestr(f'maps/maze.{name}', content)
  return buffer.getvalue()


def read_map(pk3):
  """Returns the bsp in a pk3 file."""
  with zipfile.ZipFile(io.BytesIO(pk3)) as archive:
    return archive.read('maps/maze.bsp')


class CheckTest(parameterized.TestCase):

  def test_a_folder_that_is_there_or_can_be_made(self):
    folder = self.create_tempdir().full_path
    for path in (folder, os.path.join(folder, 'a', 'b')):
      level_cache.check(path)
    self.assertEmpty(os.listdir(folder))

  @parameterized.parameters('', 'maps')
  def test_a_file_in_its_place(self, name):
    file = self.create_tempfile().full_path
    path = os.path.join(file, name)
    with self.assertRaisesRegex(ValueError, f'^level_cache: {path}: compiled maps cannot be kept there: {file}: Not a'):
      level_cache.check(path)

  def test_a_file_system_that_cannot_be_written_to(self):
    with self.assertRaisesRegex(ValueError, '^level_cache: /proc/maps: compiled maps cannot be kept there: /proc: '):
      level_cache.check('/proc/maps')


class AnnouncingTest(parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_a_map_that_has_to_be_compiled_is_long_work(self, is_kept):
    folder = self.create_tempdir().full_path
    said = []
    long_work.tell(said.append)
    self.addCleanup(long_work.tell, lambda under_way: None)
    cache = level_cache.Announcing(level_cache.LevelCache(os.path.join(folder, 'maps')) if is_kept else None)
    path = os.path.join(folder, 'maze.pk3')
    self.assertFalse(cache.fetch(_KEY, path))
    self.assertEqual(said, [True])
    with open(path, 'wb') as file:
      file.write(make_map(b'bsp'))
    cache.write(_KEY, path)
    self.assertEqual(said, [True, False])
    self.assertEqual(cache.fetch(_KEY, path), is_kept)
    self.assertLen(said, 2 if is_kept else 3)


def _read(path):
  with open(path, 'rb') as file:
    return file.read()


def _write(path, content):
  with open(path, 'wb') as file:
    file.write(content)


class LevelCacheTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir('cache').full_path
    self.scratch = self.create_tempdir('scratch').full_path
    self.path = os.path.join(self.scratch, 'maze.pk3')
    self.cache = level_cache.LevelCache(self.folder)

  def _keep(self, key=_KEY, bsp=b'IBSP of a map'):
    """Writes a map to the cache and removes it from `self.path`. Returns (the map, its entry's path)."""
    pk3 = make_map(bsp)
    _write(self.path, pk3)
    before = set(os.listdir(self.folder))
    self.cache.write(key, self.path)
    os.remove(self.path)
    entry, = set(os.listdir(self.folder)) - before
    return pk3, os.path.join(self.folder, entry)

  def test_what_was_written_is_fetched(self):
    self.assertFalse(self.cache.fetch(_KEY, self.path))
    self.assertFalse(os.path.exists(self.path))
    pk3, _ = self._keep()
    other, _ = self._keep('other', b'IBSP of another')
    self.assertIs(self.cache.fetch(_KEY, self.path), True)
    self.assertEqual(_read(self.path), pk3)
    self.assertTrue(level_cache.LevelCache(self.folder).fetch('other', self.path))  # It replaces the older map.
    self.assertEqual(_read(self.path), other)
    self.assertEqual(os.listdir(self.scratch), ['maze.pk3'])

  def test_a_later_map_replaces_an_earlier_one(self):
    self._keep()
    later = make_map(b'IBSP of a later map', aas='for bots')
    _write(self.path, later)
    self.cache.write(_KEY, self.path)
    self.assertTrue(self.cache.fetch(_KEY, self.path))
    self.assertEqual(_read(self.path), later)
    self.assertLen(os.listdir(self.folder), 1)

  def test_regression_other_users_can_read_an_entry(self):
    self.addCleanup(os.umask, os.umask(0o022))
    _, entry = self._keep()
    self.assertEqual(stat.S_IMODE(os.stat(entry).st_mode), 0o644)

  def test_the_folder_is_made(self):
    folder = os.path.join(self.folder, 'a', 'b')
    level_cache.LevelCache(folder)
    self.assertTrue(os.path.isdir(folder))

  def test_a_folder_that_cannot_be_made(self):
    _write(os.path.join(self.folder, 'file'), b'')
    with self.assertRaises(OSError):
      level_cache.LevelCache(os.path.join(self.folder, 'file'))

  def test_every_damaged_byte_and_every_cut_is_found(self):
    pk3, entry = self._keep()
    whole = _read(entry)
    random = np.random.RandomState(0)
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ (1 << random.randint(8))]) + whole[i + 1:] for i in range(len(whole))]
    damaged += [whole + b'\0', bytes(len(whole)), random.bytes(len(whole)), pk3]
    for content in damaged:
      _write(entry, content)
      _write(self.path, b'an older map')
      self.assertIs(self.cache.fetch(_KEY, self.path), False)
      self.assertFalse(os.path.exists(entry))
      self.assertEqual(_read(self.path), b'an older map')
    self._keep()
    self.assertTrue(self.cache.fetch(_KEY, self.path))

  def test_what_is_no_map_is_not_kept(self):
    whole = make_map(b'IBSP' * 1000)
    flipped = bytearray(whole)
    flipped[45] ^= 1  # A bit of the compressed bytes: only the checksum shows it.
    two_maps = io.BytesIO(whole)
    with zipfile.ZipFile(two_maps, 'a') as archive:
      archive.writestr('maps/other.bsp', b'')
    no_map = io.BytesIO()
    with zipfile.ZipFile(no_map, 'w') as archive:
      archive.writestr('maps/maze.aas', b'')
    for content in (b'', b'garbage', whole[:-1], whole[:100], bytes(flipped), two_maps.getvalue(), no_map.getvalue()):
      _write(self.path, content)
      self.cache.write(_KEY, self.path)
      self.assertEmpty(os.listdir(self.folder))
    os.remove(self.path)
    self.cache.write(_KEY, self.path)
    self.assertEmpty(os.listdir(self.folder))

  @parameterized.parameters('../outside', 'a/b', '/etc/passwd', '..', '.hidden', '', 'a\nb', 'a\0b', 'x' * 201, 'é')
  def test_a_key_that_is_no_file_name_is_a_miss(self, key):
    _write(self.path, make_map(b'IBSP'))
    self.cache.write(key, self.path)
    self.assertEmpty(os.listdir(self.folder))
    self.assertCountEqual(os.listdir(os.path.dirname(self.folder)), ['cache', 'scratch'])
    self.assertIs(self.cache.fetch(key, self.path), False)

  def test_rubbish_in_the_folder_is_harmless_and_stays(self):
    _write(os.path.join(self.folder, 'README'), b'hello')
    _write(os.path.join(self.folder, _KEY), b'of another cache')
    os.mkdir(os.path.join(self.folder, 'maps'))
    os.symlink('/no/such/file', os.path.join(self.folder, 'link'))
    rubbish = set(os.listdir(self.folder))
    pk3, entry = self._keep()
    self.assertTrue(self.cache.fetch(_KEY, self.path))
    self.assertEqual(_read(self.path), pk3)
    self.assertEqual(set(os.listdir(self.folder)), rubbish | {os.path.basename(entry)})

  def test_what_is_no_file_where_an_entry_should_be_is_a_miss(self):
    _, entry = self._keep()
    makers = {'folder': os.mkdir, 'pipe': os.mkfifo, 'loop': lambda path: os.symlink(path, path)}
    for name, make in makers.items():
      os.remove(entry)
      make(entry)
      self.assertIs(self.cache.fetch(_KEY, self.path), False, name)
      _write(self.path, make_map(b'IBSP'))
      self.cache.write(_KEY, self.path)
      if name == 'folder':
        os.rmdir(entry)
        self._keep()
      else:
        self.assertTrue(self.cache.fetch(_KEY, self.path), name)
    self.assertLen(os.listdir(self.folder), 1)  # There are no temporary files.

  def test_a_place_that_cannot_be_written_is_a_miss(self):
    self._keep()
    self.assertIs(self.cache.fetch(_KEY, os.path.join(self.scratch, 'no', 'such', 'folder', 'maze.pk3')), False)
    os.mkdir(self.path)
    self.assertIs(self.cache.fetch(_KEY, self.path), False)
    self.assertEqual(os.listdir(self.scratch), ['maze.pk3'])

  def test_a_folder_that_is_gone_is_a_miss(self):
    os.rmdir(self.folder)
    _write(self.path, make_map(b'IBSP'))
    self.cache.write(_KEY, self.path)
    self.assertIs(self.cache.fetch(_KEY, self.path), False)

  def test_a_full_disk_is_a_miss_and_leaves_nothing(self):
    self._keep()
    program = ('import resource, signal, sys\n'
               'from scalable_agents.environments import level_cache\n'
               'signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n'
               'resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n'
               'cache = level_cache.LevelCache(sys.argv[1])\n'
               'cache.write("new", sys.argv[2])\n'
               f'print(cache.fetch("{_KEY}", sys.argv[3]))\n')
    _write(self.path, make_map(b'IBSP'))
    fetched = os.path.join(self.scratch, 'fetched.pk3')
    printed = subprocess.run([sys.executable, '-c', program, self.folder, self.path, fetched], check=True,
                             env=python_path.environment(), stdout=subprocess.PIPE, text=True).stdout
    self.assertEqual(printed, 'False\n')
    self.assertEqual(os.listdir(self.scratch), ['maze.pk3'])
    self.assertLen(os.listdir(self.folder), 1)
    self.assertTrue(self.cache.fetch(_KEY, self.path))


class ProcessesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir('cache').full_path
    self.scratch = self.create_tempdir('scratch').full_path

  def _start(self, number, turns=150):
    process = subprocess.Popen([sys.executable, '-c', _WRITER, self.folder, self.scratch, str(number), str(turns)],
                               env=python_path.environment(), stdout=subprocess.PIPE, text=True)
    self.addCleanup(process.stdout.close)
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    return process

  def test_many_processes_share_a_folder(self):
    processes = [self._start(number) for number in range(4)]
    for process in processes:
      fetched = int(process.communicate()[0].split()[-1])
      self.assertEqual(process.returncode, 0)
      # At least all fetches but the first one of each key succeed, so no entry was ever damaged.
      self.assertGreaterEqual(fetched, 147)
    self.assertLen(os.listdir(self.folder), 3)

  def test_a_killed_writer_damages_nothing(self):
    sound = self._start(0)
    for number in range(1, 9):
      process = self._start(number, turns=10**9)
      self.assertEqual(waiting.start(process.stdout.readline)(), 'begins\n')
      process.kill()
      self.assertEqual(process.wait(), -signal.SIGKILL)
    self.assertGreaterEqual(int(sound.communicate()[0].split()[-1]), 147)
    self.assertEqual(sound.returncode, 0)


if __name__ == '__main__':
  absltest.main()
