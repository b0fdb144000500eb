"""Lists the packages and builds the C++ ops with TensorFlow's flags. The metadata is in pyproject.toml."""

from concurrent import futures
import glob
import os
import pathlib
import platform
import re
import runpy
import shlex
import shutil
import sys

import setuptools
from setuptools.command import bdist_wheel
from setuptools.command import build_ext
from setuptools.command import build_py

if not sys.platform.startswith('linux'):
  raise SystemExit('scalable_agents: needs Linux; on Windows, use WSL 2')

# The repository's root is the package `scalable_agents`. These folders are its subpackages. Tests are not installed.
_FOLDERS = ('actor', 'agents', 'benchmark', 'cluster', 'environments', 'evaluation', 'experience', 'launch', 'learner',
            'networks', 'ops', 'population', 'processes', 'records', 'replay', 'tables', 'tools', 'training')
_SOURCES = runpy.run_path('ops/sources.py')
_SUBPACKAGES = setuptools.find_packages(include=[pattern for name in _FOLDERS for pattern in (name, f'{name}.*')])

# (M, N): libstdc++ has the symbols up to GLIBCXX_3.4.M on systems whose C library is 2.N, such as those of RHEL 8,
# Debian 11, RHEL 9, Ubuntu 22.04 and Ubuntu 24.04.
_CXX_SYMBOLS = ((25, 28), (28, 31), (29, 34), (30, 35), (33, 39))

# The ops load only into the TensorFlow that they were built for. The packages of the second set have its versions.
_EXACT, _SAME_SERIES = {'tensorflow'}, {'tensorboard', 'tf-keras'}


def _dependency(requirement):
  """Returns the range of versions for a pinned requirement: from the tested version to the next major one."""
  name, version = requirement.split('==')
  if name.partition('[')[0] in _EXACT:
    return requirement
  return f'{name}~={version}' if name in _SAME_SERIES else f'{name}>={version},<{int(version.split(".")[0]) + 1}'


def _dependencies(*files):
  """Returns the ranges of versions for the pinned requirements in these files."""
  lines = [line for file in files for line in pathlib.Path(file).read_text(encoding='utf-8').splitlines()]
  return [_dependency(line) for line in lines if '==' in line]


def _library(name, folders):
  """Returns a library of the C++ code of these folders."""
  def files(suffix):
    return sorted(path for folder in folders for path in glob.glob(f'{folder}/cc/*{suffix}'))

  return setuptools.Extension(
      f'scalable_agents.{name}', sources=files('.cc'), depends=files('.h'), include_dirs=['.'], language='c++')


class BuildModules(build_py.build_py):
  """Copies the modules to the build folder, which becomes the installed package as it is."""

  def run(self):
    """Removes modules of an earlier build first, because some may have been deleted or moved since."""
    shutil.rmtree(os.path.join(self.build_lib, 'scalable_agents'), ignore_errors=True)
    super().run()


class BuildLibraries(build_ext.build_ext):
  """Compiles the ops against the installed TensorFlow. The libraries have the same names as in Bazel, as `_ops.so`."""

  def build_extensions(self):
    """Compiles several files at the same time; setuptools alone compiles one after another."""
    compile_in_turn = self.compiler.compile

    def compile_at_once(sources, *args, **kwargs):
      with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        objects = threads.map(lambda source: compile_in_turn([source], *args, **kwargs), sources)
        return [name for names in objects for name in names]

    self.compiler.compile = compile_at_once
    if os.environ.get('CXX'):  # setuptools links with Python's own compiler even then.
      self.compiler.linker_so_cxx[:1] = shlex.split(os.environ['CXX'])  # It may be a command such as `ccache g++`.
    super().build_extensions()

  def build_extension(self, ext):
    """Adds TensorFlow's compiler and linker flags. TensorFlow is imported here because only a build needs it."""
    if os.environ.get('SCALABLE_AGENTS_BUILT'):  # `make wheel` has built it already.
      shutil.copy(self.get_ext_filename(ext.name.removeprefix('scalable_agents.')), self.get_ext_fullpath(ext.name))
      return
    compiler = self.compiler.compiler_so_cxx[0]
    if not shutil.which(compiler):
      given = f' (CXX={os.environ["CXX"]})' if os.environ.get('CXX') else ''
      raise SystemExit(f'scalable_agents: its C++ code needs a compiler, and there is no {compiler}{given}; on Debian: '
                       'apt-get install g++; a wheel from `make wheel` needs none')
    # TensorFlow is built with NDEBUG, and its inline functions must be compiled in the same way here.
    ext.extra_compile_args = ['-std=c++17', '-O3', '-DNDEBUG', '-g0']
    os.makedirs(self.build_temp, exist_ok=True)
    checksum = os.path.join(self.build_temp, f'{ext.name}_sources.cc')
    folders = sorted({os.path.dirname(os.path.dirname(source)) for source in ext.sources + ext.depends})
    pathlib.Path(checksum).write_text('extern "C" const char* scalable_agents_sources() {\n'
                                      f'  return "{_SOURCES["checksum"]("", folders)}";\n}}\n', encoding='utf-8')
    ext.sources.append(checksum)
    if ext.name.endswith('_ops'):
      os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
      import tensorflow as tf
      ext.extra_compile_args += tf.sysconfig.get_compile_flags()
      ext.extra_link_args = tf.sysconfig.get_link_flags()
    super().build_extension(ext)

  def get_ext_filename(self, fullname):
    """Returns the file name without Python's suffix, because these libraries are not Python modules."""
    return os.path.join(*fullname.split('.')) + '.so'


class Wheel(bdist_wheel.bdist_wheel):
  """Names the wheel. The libraries have no Python symbol, so one wheel serves all versions of Python."""

  def get_tag(self):
    """See bdist_wheel. The tag names the oldest C library that has all symbols that the libraries need."""
    oldest = max(map(_oldest_c_library, self.get_finalized_command('build_ext').get_outputs()))
    return 'py3', 'none', f'manylinux_2_{oldest}_{platform.machine()}'


def _oldest_c_library(library):
  """Returns N, the oldest C library 2.N on whose systems a library loads: they have all symbols that it needs.

  An editable install calls this before the library is built. Such an install stays on this machine, so the answer is
  this machine's C library.
  """
  own = int(platform.libc_ver()[1].split('.')[1])
  if not os.path.exists(library):
    return own
  content = pathlib.Path(library).read_bytes()
  c, cxx = (max((int(number) for number in re.findall(rb'\0' + name + rb'\.(\d+)', content)), default=0)
            for name in (rb'GLIBC_2', rb'GLIBCXX_3\.4'))
  return min(own, max(c, next((number for newest, number in _CXX_SYMBOLS if cxx <= newest), own)))


setuptools.setup(
    install_requires=_dependencies('requirements.txt'),
    extras_require={
        'gpu': _dependencies('requirements-gpu.txt'),
        'plots': _dependencies('requirements-plots.txt'),
        'evidence': _dependencies('requirements-plots.txt', 'requirements-evidence.txt'),
        'dev': _dependencies('requirements-dev.txt', 'requirements-lint.txt'),
    },
    script_name='setup.py',  # Otherwise setuptools takes this file for a module of the root package.
    packages=['scalable_agents'] + [f'scalable_agents.{name}' for name in _SUBPACKAGES],
    package_dir={'scalable_agents': '.'},
    package_data={'scalable_agents.environments': ['data/*.csv'], 'scalable_agents.tables': ['data/*.csv']},
    ext_modules=[_library('ops._ops', _SOURCES['OPS']), _library('environments._pixels', ('environments',))],
    cmdclass={'bdist_wheel': Wheel, 'build_ext': BuildLibraries, 'build_py': BuildModules})
