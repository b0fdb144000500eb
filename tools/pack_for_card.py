"""Packs this project, Python, TensorFlow and CUDA's libraries for a machine with a card that reaches no registry.

  python tools/pack_for_card.py dist/scalable_agents-0.1.0-….whl pieces [CAPABILITY]

Writes pieces/part.000 and so on, at most 55 MB each, and their checksums. docs/gpu.md says how to unpack them. The
machine needs the card's driver, `xz`, and a C library that is not older than the one here; it needs no Python. Of the
machine code for cards, the pieces have only that for one compute capability: 9.0, unless another one is given.
"""

import mmap
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile

_PIECE_BYTES = 55 * 10**6
# The versions of CUDA's largest libraries that TensorFlow 2.21 was built with. Later ones are larger.
_BUILT_WITH = ('nvidia-cublas-cu12==12.5.3.2', 'nvidia-cudnn-cu12==9.3.0.75')
# What neither the programs nor the libraries that TensorFlow opens need.
_UNUSED = ('bin', 'clang', 'imageio_ffmpeg/binaries', 'tensorboard_data_server/bin', 'tensorflow/include',
           'nvidia/*/include', 'nvidia/cublas/lib/libnvblas*', 'nvidia/cuda_cupti/lib/libnvperf*',
           'nvidia/cuda_nvcc/nvvm/lib64', 'nvidia/cufft', 'nvidia/curand', 'nvidia/cusolver',
           'nvidia/cusparse', 'nvidia/nccl')
# TensorFlow uses a card only if it can open these, even if it never calls them. The pieces have empty ones.
_EMPTY = ('libcufft.so.11', 'libcusolver.so.11', 'libcusparse.so.12')
_OF_THE_SYSTEM = re.compile(r'(ld-linux.*|lib(c|dl|m|pthread|resolv|rt|util|gcc_s|stdc\+\+))\.so.*')
_RUN = '''#!/bin/sh
# Runs a program of scalable_agents, for example: packed/run gpu_proof
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$here/packages"
# cuDNN opens NVRTC by its name, to compile some of its convolutions.
export LD_LIBRARY_PATH="$here/libraries:$here/packages/nvidia/cuda_nvrtc/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$here/python/bin/python3" -m scalable_agents "$@"
'''

# A fat binary is a header, and then entries: a header and the code for one kind of card. CUDA's fatbinary_section.h has
# the magic number. The rest was read off the files.
_FAT_HEADER, _ENTRY_HEADER = struct.Struct('<IHHQ'), struct.Struct('<HHIQIIHHI')
_FAT_START = struct.pack('<IHH', 0xBA55ED50, 1, _FAT_HEADER.size)
_PTX, _MACHINE_CODE = 1, 2


class _ProgramError(Exception):
  """Another program has failed."""


def keep_capability(path: pathlib.Path, capability: int) -> None:
  """Overwrites the code for other cards in a library with zeros, which cost nothing when they are compressed.

  Kept is what the driver would choose: the machine code for the newest card of the same generation that is not newer
  than the card, and if there is none, the newest PTX that is not newer.

  Args:
    path: a shared library.
    capability: the compute capability of the card: 90 for 9.0.
  """
  with open(path, 'r+b') as file, mmap.mmap(file.fileno(), 0) as library:
    start = library.find(_FAT_START)
    while start >= 0:
      end = start + _FAT_HEADER.size + _FAT_HEADER.unpack_from(library, start)[3]
      entries = _entries(library, start + _FAT_HEADER.size, end)
      kept = _chosen([kind_and_card for kind_and_card, _ in entries], capability)
      for kind_and_card, code in entries:
        if kind_and_card != kept:
          library[code] = bytes(code.stop - code.start)
      start = library.find(_FAT_START, end if entries else start + 1)


def _entries(library, position, end):
  """Returns the entries of a fat binary, as ((kind, card), slice of the code); [] if it is none."""
  entries = []
  while position < end:
    if position + _ENTRY_HEADER.size > end or end > len(library):
      return []
    kind, _, header_size, size, *_, card = _ENTRY_HEADER.unpack_from(library, position)
    code = slice(position + header_size, position + header_size + size)
    if kind not in (_PTX, _MACHINE_CODE) or code.stop > end:
      return []
    entries.append(((kind, card), code))
    position = code.stop
  return entries


def _chosen(kinds_and_cards, capability):
  """Returns the (kind, card) that the driver would choose."""
  fitting = [(kind, card) for kind, card in kinds_and_cards
             if card <= capability and (kind == _PTX or card // 10 == capability // 10)]
  return max(fitting, default=None)  # Machine code has the larger number.


def copy_python(folder: pathlib.Path, libraries: pathlib.Path) -> None:
  """Copies this Python and its standard library to a folder, and the shared libraries that it opens to another."""
  own = pathlib.Path(sysconfig.get_path('stdlib'))
  copy = folder / 'lib' / own.name
  shutil.copytree(own, copy, ignore=shutil.ignore_patterns(
      '__pycache__', 'config-*', 'dist-packages', 'ensurepip', 'idlelib', 'site-packages', 'test', 'tkinter'))
  (folder / 'bin').mkdir()
  program = folder / 'bin/python3'
  shutil.copy(os.path.realpath(sys.executable), program)
  libraries.mkdir(exist_ok=True)
  listed = _run('ldd', [program, *copy.glob('lib-dynload/*.so')], capture_output=True, text=True)
  for name, found in set(re.findall(r'^\t(\S+) => (/\S+)', listed.stdout, re.MULTILINE)):
    if not _OF_THE_SYSTEM.fullmatch(name):
      shutil.copy(found, libraries / name)


def _run(program, arguments, **settings):
  """Runs a program, also pip. Raises _ProgramError if it fails. The screen has the program's own messages then."""
  command = [sys.executable, '-m', 'pip'] if program == 'pip' else [program]
  done = subprocess.run([*command, *arguments], check=False, **settings)
  if done.returncode:
    print(done.stderr or '', end='', file=sys.stderr)  # If they were captured.
    raise _ProgramError(f'{program} failed, see above')
  return done


def _pack(wheel, folder, capability):
  """Makes the folder that is packed."""
  packages, libraries = folder / 'packages', folder / 'libraries'
  copy_python(folder / 'python', libraries)
  _run('pip', ['install', '--quiet', '--disable-pip-version-check', '--no-compile', '--only-binary=:all:', '--target',
               packages, f'{wheel}[gpu]', *_BUILT_WITH])
  for pattern in _UNUSED:
    for path in packages.glob(pattern):
      shutil.rmtree(path) if path.is_dir() else path.unlink()
  for name in _EMPTY:
    _run('cc', ['-shared', '-o', libraries / name, '-x', 'c', os.devnull])
  for path in packages.glob('**/*.so*'):
    keep_capability(path, capability)
  (folder / 'run').write_text(_RUN, encoding='utf-8')
  (folder / 'run').chmod(0o755)


def _write(wheel, pieces, capability):
  """Writes the pieces and their checksums, to a folder that exists and is empty."""
  with tempfile.TemporaryDirectory(dir=pieces) as folder:
    packed = pathlib.Path(folder) / 'packed'
    packed.mkdir()
    _pack(wheel, packed, capability)
    # Blocks let the other machine decompress on all cores.
    _run('bash', ['-o', 'pipefail', '-c', 'tar -c packed | xz -1 -T0 --block-size=48MiB | '
                  f'split -b {_PIECE_BYTES} -a 3 -d - ../part.'], cwd=folder)
  names = sorted(path.name for path in pieces.glob('part.*'))
  with open(pieces / 'SHA256SUMS', 'wb') as sums:
    _run('sha256sum', names, cwd=pieces, stdout=sums)
  print(f'{len(names)} pieces, {sum((pieces / name).stat().st_size for name in names) / 1e6:.0f} MB: {pieces}')


def main():
  """Runs the program."""
  if '--help' in sys.argv:
    print(__doc__)
    return
  if len(sys.argv) not in (3, 4):
    sys.exit(__doc__)
  wheel, pieces, capability = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]), (sys.argv[3:] or ['9.0'])[0]
  if not os.path.exists(wheel):
    sys.exit(f'{wheel}: no such file')
  if not re.fullmatch(r'\d+\.\d', capability):
    sys.exit(f'{capability}: want a compute capability, such as 9.0')
  try:
    pieces.mkdir()
    try:
      _write(wheel, pieces, int(capability.replace('.', '')))
    except BaseException:  # Also Ctrl-C. The same command can be tried again only if the folder is gone.
      shutil.rmtree(pieces, ignore_errors=True)
      raise
  except KeyboardInterrupt:
    sys.exit(130)  # The exit code of a shell after Ctrl-C.
  except (OSError, _ProgramError) as error:
    sys.exit(str(error))


if __name__ == '__main__':
  main()
