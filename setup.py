"""Lists the packages and builds the C++ ops with TensorFlow's flags. The metadata is in pyproject.toml."""

from concurrent import futures
import glob
import os
import platform
import shutil

import setuptools
from setuptools.command import bdist_wheel
from setuptools.command import build_ext

# The repository's root is the package `scalable_agents`. These folders are its subpackages. Tests are not installed.
_FOLDERS = ('actor', 'agents', 'benchmark', 'cluster', 'environments', 'evaluation', 'experience', 'launch', 'learner',
            'networks', 'ops', 'population', 'processes', 'records', 'replay', 'tables', 'tools', 'training')
_SUBPACKAGES = setuptools.find_packages(include=[pattern for name in _FOLDERS for pattern in (name, f'{name}.*')])


# The ops load only into the TensorFlow that they were built for, and these follow its versions.
_EXACT, _SAME_SERIES = {'tensorflow'}, {'tensorboard', 'tf-keras'}


def _dependency(requirement):
  """Returns the range of versions that a pinned requirement stands for: from the tested one to the next major one."""
  name, version = requirement.split('==')
  if name in _EXACT:
    return requirement
  return f'{name}~={version}' if name in _SAME_SERIES else f'{name}>={version},<{int(version.split(".")[0]) + 1}'


class BuildOps(build_ext.build_ext):
  """Compiles against the installed TensorFlow. The output is called `_ops.so`, as in Bazel."""

  def build_extension(self, ext):
    """Adds TensorFlow's compiler and linker flags. TensorFlow is imported here because only a build needs it."""
    built = os.environ.get('SCALABLE_AGENTS_OPS')  # `make wheel` has built it already.
    if built:
      shutil.copy(built, self.get_ext_fullpath(ext.name))
      return
    if not shutil.which(os.environ.get('CXX', 'c++')):
      raise SystemExit('scalable_agents: its C++ ops need a compiler, and there is no c++ (on Debian: apt-get install '
                       'g++); a wheel from `make wheel` needs none')
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    import tensorflow as tf
    # TensorFlow is built with NDEBUG, and its inline functions must be compiled in the same way here.
    ext.extra_compile_args = tf.sysconfig.get_compile_flags() + ['-std=c++17', '-O3', '-DNDEBUG', '-g0']
    ext.extra_link_args = tf.sysconfig.get_link_flags()
    compile_in_turn = self.compiler.compile

    def compile_at_once(sources, *args, **kwargs):
      with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        objects = threads.map(lambda source: compile_in_turn([source], *args, **kwargs), sources)
        return [name for names in objects for name in names]

    self.compiler.compile = compile_at_once  # setuptools compiles one file after another.
    super().build_extension(ext)

  def get_ext_filename(self, fullname):
    """Returns the file name without Python's suffix, because an op library is not a Python module."""
    return os.path.join(*fullname.split('.')) + '.so'


class Wheel(bdist_wheel.bdist_wheel):
  """Names the wheel. The op library has no Python symbol, so one wheel serves all versions of Python."""

  def get_tag(self):
    """See bdist_wheel. The C library may not be older than this machine's."""
    version = platform.libc_ver()[1].replace('.', '_')
    return 'py3', 'none', f'manylinux_{version}_{platform.machine()}'


with open('requirements.txt', encoding='utf-8') as _file:
  _DEPENDENCIES = [_dependency(line) for line in _file.read().splitlines() if '==' in line]

setuptools.setup(
    install_requires=_DEPENDENCIES,
    script_name='setup.py',  # Otherwise setuptools takes this file for a module of the root package.
    packages=['scalable_agents'] + [f'scalable_agents.{name}' for name in _SUBPACKAGES],
    package_dir={'scalable_agents': '.'},
    package_data={'scalable_agents.environments': ['data/*.csv'], 'scalable_agents.tables': ['data/*.csv']},
    ext_modules=[
        setuptools.Extension(
            'scalable_agents.ops._ops',
            sources=sorted(glob.glob('*/cc/*.cc')),
            depends=sorted(glob.glob('*/cc/*.h')),
            include_dirs=['.'],
            language='c++')
    ],
    cmdclass={'bdist_wheel': Wheel, 'build_ext': BuildOps})
