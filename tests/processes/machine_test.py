"""Tests the limits of cores and memory, with folders that look like those of the kernel."""

import os
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.processes import machine

_CORES, _GIB = 16, 1 << 30
_V2 = '24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n'
_V1 = ('33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n'
       '36 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n'
       '37 31 0:33 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n')
_SLURM = 'system.slice/slurmstepd.scope/job_7'


class LimitsTest(parameterized.TestCase):

  def _limits(self, files):
    """Returns (cores, GiB of memory) on a machine of 16 cores and 64 GiB with these files."""
    root = pathlib.Path(self.create_tempdir().full_path)
    for name, content in files.items():
      path = root / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with mock.patch.object(machine, '_ROOT', str(root)), mock.patch.object(
        os, 'sched_getaffinity', return_value=set(range(_CORES))), mock.patch.object(
            psutil, 'virtual_memory', return_value=mock.Mock(total=64 * _GIB, available=50 * _GIB)):
      self._free = machine.free_memory_bytes() / _GIB
      return machine.num_cores(), machine.memory_bytes() / _GIB

  def _v2(self, group, limits, mountinfo=_V2):
    files = {f'sys/fs/cgroup/{name}': text for name, text in limits.items()}
    return self._limits(files | {'proc/self/cgroup': f'0::{group}\n', 'proc/self/mountinfo': mountinfo})

  def _v1(self, limits, cgroup='4:memory:/docker/a\n3:cpuset:/\n2:cpu,cpuacct:/docker/a\n1:name=systemd:/x\n0::/\n',
          mountinfo=_V1):
    files = {f'sys/fs/cgroup/{name}': text for name, text in limits.items()}
    return self._limits(files | {'proc/self/cgroup': cgroup, 'proc/self/mountinfo': mountinfo})

  def test_this_machine_has_some(self):
    self.assertBetween(machine.memory_bytes(), 100_000_000, 1 << 50)
    allowed = os.sched_getaffinity(0)
    self.addCleanup(os.sched_setaffinity, 0, allowed)
    os.sched_setaffinity(0, {min(allowed)})
    self.assertEqual(machine.num_cores(), 1)

  def test_without_control_groups(self):
    self.assertEqual(self._limits({}), (_CORES, 64))
    self.assertEqual(self._v2('/', {}), (_CORES, 64))
    self.assertEqual(self._v1({}), (_CORES, 64))

  def test_a_container_that_sees_its_own_group_as_the_root(self):
    self.assertEqual(self._v2('/', {'memory.max': f'{2 * _GIB}\n', 'cpu.max': '200000 100000\n'}), (2, 2))

  def test_the_smallest_limit_of_nested_groups(self):
    job = {f'{_SLURM}/memory.max': f'{8 * _GIB}\n', f'{_SLURM}/cpu.max': '400000 100000\n',
           f'{_SLURM}/step_0/memory.max': 'max\n', f'{_SLURM}/step_0/cpu.max': 'max 100000\n'}
    self.assertEqual(self._v2(f'/{_SLURM}/step_0', job), (4, 8))
    inner = {f'{_SLURM}/step_0/memory.max': f'{3 * _GIB}', f'{_SLURM}/step_0/cpu.max': '50000 100000'}
    self.assertEqual(self._v2(f'/{_SLURM}/step_0', job | inner), (1, 3))
    outer = {'system.slice/memory.max': str(_GIB), 'system.slice/cpu.max': '290000 100000'}
    self.assertEqual(self._v2(f'/{_SLURM}/step_0', job | outer), (3, 1))
    others = {'user.slice/memory.max': '1', f'{_SLURM}/step_1/memory.max': '1', 'user.slice/cpu.max': '1000 100000'}
    self.assertEqual(self._v2(f'/{_SLURM}/step_0', job | others), (4, 8))

  def test_version_1(self):
    limits = {'memory/docker/a/memory.limit_in_bytes': f'{9223372036854771712}\n',
              'memory/docker/memory.limit_in_bytes': f'{5 * _GIB}\n',
              'cpu,cpuacct/docker/a/cpu.cfs_quota_us': '-1\n', 'cpu,cpuacct/docker/a/cpu.cfs_period_us': '100000\n',
              'cpu,cpuacct/docker/cpu.cfs_quota_us': '300000\n', 'cpu,cpuacct/docker/cpu.cfs_period_us': '100000\n',
              'cpuset/memory.limit_in_bytes': '1'}
    self.assertEqual(self._v1(limits), (3, 5))

  def test_free_memory_of_version_2(self):
    self._v2('/a', {'a/memory.max': 'max', 'a/memory.current': '0'})
    self.assertEqual(self._free, 50)
    limits = {'a/memory.max': str(8 * _GIB), 'a/memory.current': str(6 * _GIB)}
    self._v2('/a', limits)
    self.assertEqual(self._free, 2)
    self._v2('/a', limits | {'a/memory.stat': f'anon 1\nactive_file {_GIB}\ninactive_file {3 * _GIB}\n'})
    self.assertEqual(self._free, 5)
    self._v2('/a', limits | {'a/memory.current': str(9 * _GIB), 'a/memory.stat': 'a b c\n'})
    self.assertEqual(self._free, 0)

  def test_free_memory_of_version_1(self):
    limits = {'memory/docker/memory.limit_in_bytes': str(8 * _GIB),
              'memory/docker/memory.usage_in_bytes': str(6 * _GIB),
              'memory/docker/memory.stat': f'inactive_file 0\ntotal_inactive_file {_GIB}\n'}
    self._v1(limits)
    self.assertEqual(self._free, 3)

  def test_a_container_in_which_only_its_own_group_is_mounted(self):
    mounted = _V1.replace(' / /sys', ' /docker/a /sys')
    self.assertEqual(self._v1({'memory/memory.limit_in_bytes': str(_GIB)}, mountinfo=mounted), (_CORES, 1))
    mounted = _V2.replace(' / /sys', ' /docker/a /sys')
    self.assertEqual(self._v2('/docker/a/b', {'b/memory.max': str(_GIB), 'cpu.max': '100000 100000'}, mounted), (1, 1))
    self.assertEqual(self._v2('/docker/other', {'memory.max': str(_GIB)}, mounted), (_CORES, 1))
    self.assertEqual(self._v2('/../other', {'memory.max': str(_GIB), '../memory.max': '1'}), (_CORES, 1))

  def test_both_versions_at_once(self):
    mountinfo = _V1 + _V2.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')
    limits = {'memory/docker/a/memory.limit_in_bytes': str(5 * _GIB), 'unified/memory.max': str(4 * _GIB)}
    self.assertEqual(self._v1(limits, mountinfo=mountinfo), (_CORES, 4))

  def test_a_folder_with_a_space(self):
    mountinfo = _V2.replace('/sys/fs/cgroup', r'/sys/fs/cgroup/my\040groups')
    self.assertEqual(self._v2('/a b', {'my groups/a b/memory.max': str(_GIB)}, mountinfo), (_CORES, 1))

  @parameterized.parameters('', 'max', '-1', '0', '1e9', 'a b', b'\xff\xfe', '\n\n')
  def test_no_limit(self, text):
    self.assertEqual(self._v2('/a', {'a/cpu.max': text, 'a/memory.max': text}), (_CORES, 64))

  @parameterized.parameters('100000', '0 0', '100000 0', '-1 100000', '1 2 3')
  def test_no_quota(self, text):
    self.assertEqual(self._v2('/a', {'a/cpu.max': text}), (_CORES, 64))

  @parameterized.parameters(b'', b'\n', b'\xff\n', b'0\n', b'0::\n', b'a:b\n', b'::\n', b'0::/\xff\n', b'x' * 10_000,
                            b'1 2 3 / /a - cgroup2\n', b'1 2 3 / - cgroup2 a b\n')
  def test_files_of_another_form(self, text):
    for name in ('proc/self/cgroup', 'proc/self/mountinfo'):
      files = {'proc/self/cgroup': '0::/a\n', 'proc/self/mountinfo': _V2, name: text}
      self.assertEqual(self._limits(files), (_CORES, 64))


class ProcessorTimeTest(absltest.TestCase):

  def test_seconds(self):
    root = self.create_tempdir()
    root.create_file('proc/12/schedstat', '900000000 2500000000 17\n')
    root.create_file('proc/13/schedstat', '0\n')
    with mock.patch.object(machine, '_ROOT', root.full_path):
      self.assertEqual([machine.processor_wait_seconds(pid) for pid in (12, 13, 14)], [2.5, 0., 0.])

  def test_of_this_process(self):
    self.assertGreaterEqual(machine.processor_wait_seconds(os.getpid()), 0.)

  def test_of_other_programs(self):
    second = os.sysconf('SC_CLK_TCK')
    lines = ['cpu 9 9 9 9 9 9', *(f'cpu{core} {user * second} {2 * second} {second} 777 888 0 0 0 0 0'
                                  for core, user in enumerate((10, 20, 40))), 'intr 12345 0 9', 'btime 9']
    root = self.create_tempdir()
    process = lambda *times: mock.Mock(cpu_times=lambda: times)
    ended = mock.Mock(cpu_times=mock.Mock(side_effect=psutil.NoSuchProcess(1)))
    own = process(1., 2., 0.5, 0., 99.)
    own.children.return_value = [process(4., 0., 0., 0.25), ended]
    with mock.patch.object(machine, '_ROOT', root.full_path), mock.patch.object(
        os, 'sched_getaffinity', return_value={0, 2}), mock.patch.object(psutil, 'Process', return_value=own):
      self.assertEqual(machine.other_programs_seconds(), -7.75)  # The kernel does not say.
      root.create_file('proc/stat', '\n'.join(lines))
      self.assertEqual(machine.other_programs_seconds(), 10 + 40 + 2 * (2 + 1) - 7.75)
    own.children.assert_called_with(recursive=True)


if __name__ == '__main__':
  absltest.main()
