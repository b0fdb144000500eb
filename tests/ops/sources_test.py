"""A library that was built from other sources is refused."""

import os
import pathlib
import subprocess

from absl.testing import absltest

from scalable_agents.ops import sources


class SourcesTest(absltest.TestCase):

  def test_a_library_of_other_sources_is_refused(self):
    root = pathlib.Path(self.create_tempdir().full_path)
    for folder in ('one', 'two', 'elsewhere'):
      (root / folder / 'cc').mkdir(parents=True)
      (root / folder / 'cc' / 'code.cc').write_text(f'// {folder}\n', encoding='utf-8')
    folders, library = ['one', 'two'], str(root / 'one' / 'library.so')

    def build(checksum):
      """As setup.py does."""
      text = f'const char* scalable_agents_sources() {{ return "{checksum}"; }}'
      subprocess.run(['gcc', '-shared', '-fPIC', '-x', 'c', '-', '-o', library], input=text, text=True, check=True)

    build(sources.checksum(str(root), folders))
    sources.check(library, folders)
    (root / 'elsewhere' / 'cc' / 'code.cc').write_text('', encoding='utf-8')
    (root / 'two' / 'cc' / 'code.cc.orig').write_text('', encoding='utf-8')  # A copy by an editor or by patch.
    sources.check(library, folders)
    (root / 'two' / 'cc' / 'code.cc').write_text('// new\n', encoding='utf-8')
    with self.assertRaisesRegex(ImportError, '/one/library.so is older than this code: run `make setup`$'):
      sources.check(library, folders)
    os.rename(library, f'{library}.built')
    os.symlink(f'{library}.built', library)
    sources.check(library, folders)  # A library of Bazel.
    os.remove(library)
    build('')  # By an older setup.py.
    with self.assertRaisesRegex(ImportError, 'is older than this code'):
      sources.check(library, folders)
    self.assertEqual(sources.checksum(str(root), ['three']), '')
    sources.check(library, ['three'])  # An installed package has no sources.


if __name__ == '__main__':
  absltest.main()
