"""Tests of the Makefile."""

import os
import pathlib
import shutil
import subprocess

from absl.testing import absltest

from scalable_agents.tests import source_tree

# Stands for a Python whose venv fails late, for example because the disk is full.
_PYTHON = '''#!/bin/sh
[ "$2" = venv ] || exit 0
mkdir -p .venv/bin
touch .venv/bin/python
exit 1
'''


class MakefileTest(absltest.TestCase):

  def test_an_environment_that_could_not_be_made_does_not_stay(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    shutil.copy(source_tree.ROOT / 'Makefile', folder)
    for name, script in (('tools/install_packages.sh', '#!/bin/sh\n'), ('bin/python3.11', _PYTHON)):
      file = folder / name
      file.parent.mkdir()
      file.write_text(script, encoding='utf-8')
      file.chmod(0o700)
    done = subprocess.run(['make', '.venv/bin/python'], cwd=folder, text=True, capture_output=True, check=False,
                          env=os.environ | {'PATH': f'{folder}/bin:{os.environ["PATH"]}'})
    self.assertEqual(done.returncode, 2, done.stderr)
    self.assertTrue((folder / '.venv/bin').exists(), done.stdout)
    self.assertFalse((folder / '.venv/bin/python').exists())


if __name__ == '__main__':
  absltest.main()
