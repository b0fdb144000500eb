"""Configures the site that `make docs` builds. The pages are the Markdown files in this folder."""

import os
import pathlib
import re
import sys

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.util import inspect

os.environ['SNT_MODULE_NAME_SCOPES'] = '0'  # Otherwise Sonnet wraps methods, without their docstrings.
import scalable_agents
from scalable_agents.tools import reference

project = 'scalable_agents'
version = release = scalable_agents.__version__
copyright = 'the authors of scalable_agents. Apache License 2.0'

extensions = ['myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
html_theme = 'furo'
html_title = 'scalable_agents'
html_static_path = ['_static']
html_css_files = ['site.css']
html_copy_source = False
highlight_language = 'text'
smartquotes = False  # It would print the flag --seed with a dash.

# Pages with code cells run while the site is built. What TensorFlow prints about the machine is left out.
nb_execution_mode = 'force'
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = 'remove'

# {{ NAME }} in a page stands for a table of the reference, which may have a class.
# Formulas are written as GitHub reads them: $...$ in a line, and blocks of the language `math`.
myst_enable_extensions = ['substitution', 'attrs_block', 'dollarmath']
myst_dmath_allow_space = myst_dmath_allow_digits = False
myst_fence_as_directive = ['math']
html_math_renderer = 'mathml'
myst_substitutions = reference.tables()
myst_heading_anchors = 4  # Links to headings are those of GitHub.

default_role = 'code'  # Docstrings have code between single backticks, as Markdown does.
autodoc_default_options = {'members': True, 'undoc-members': True, 'member-order': 'bysource'}
autodoc_inherit_docstrings = False
autoclass_content = 'both'  # The docstring of __init__, too, which has the arguments.
autodoc_preserve_defaults = True
autodoc_typehints_format = 'short'
maximum_signature_line_length = 100
napoleon_custom_sections = [('Attributes', 'params_style')]

_DOCS = pathlib.Path(__file__).resolve().parent
_LINK = re.compile(r'\[([^][]+)\]\((\.\./[^)#]+)(#[^)]*)?\)')
# GitHub's workflows say which repository they build. Elsewhere, the path of a source file stands in place of a link.
_SOURCES = ('{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/blob/{GITHUB_SHA}'.format_map(os.environ)
            if 'GITHUB_REPOSITORY' in os.environ else '')


def _link_sources(app, page, content):
  """Lets the links of a page to files outside this folder lead to the repository."""
  def linked(match):
    text, file, anchor = match.groups('')
    path = (_DOCS / page).parent.joinpath(file).resolve()
    if path.is_relative_to(_DOCS) or not path.exists():  # Sphinx checks these links.
      return match[0]
    path = str(path.relative_to(_DOCS.parent))
    if _SOURCES:
      return f'[{text}]({_SOURCES}/{path}{anchor})'
    return text if path in text else f'{text} (`{path}`)'

  content[0] = _LINK.sub(linked, content[0])


def _describe(app, what, name, thing, options, lines):
  """Makes reStructuredText of a docstring, and adds the fields of a class, or the constants of a module."""
  if what == 'class' and ''.join(lines).startswith('Create new instance of'):  # Of the __new__ that NamedTuple makes.
    lines.clear()
    return
  lines[:] = reference.restructured(lines)
  if what in ('class', 'module') and (fields := reference.fields(thing)):
    lines.append('')
    for declaration, meaning in fields.values():
      lines += [f'* ``{declaration}``', *(f'  {line}' for line in reference.restructured([meaning]))]


def _shorten(app, what, name, thing, options, signature, returned):
  """Leaves out the signature of a class whose fields are listed. Finds the one that Sonnet's metaclass hides."""
  if what == 'class' and reference.fields(thing):
    return '', None
  if what == 'class' and signature == '(*args, **kwargs)':
    arguments = inspect.signature(thing.__init__, bound_method=True)
    return inspect.stringify_signature(arguments, unqualified_typehints=True), None
  return None


def _skip(app, what, name, thing, skip, options):
  """Leaves out the entries of fields, which `_describe` has listed."""
  if what != 'class':
    return None
  document = app.env.current_document
  kind = getattr(sys.modules[document.autodoc_module], document.autodoc_class)
  return name in reference.fields(kind) or None


def _write_formula(self, node):
  """Writes a formula in MathML, which browsers show without a script of another site. Called by Sphinx."""
  is_block = isinstance(node, nodes.math_block)
  formula = latex2mathml.tex2mathml(node.astext(), as_block=is_block)
  self.body.append(f'<div class="formula">{formula}</div>' if is_block else formula)
  raise nodes.SkipNode


def setup(app):
  """Connects the functions above. Called by Sphinx."""
  app.connect('source-read', _link_sources)
  app.connect('autodoc-process-docstring', _describe, priority=100)  # Before napoleon.
  app.connect('autodoc-process-signature', _shorten)
  app.connect('autodoc-skip-member', _skip)
  app.add_html_math_renderer('mathml', (_write_formula, None), (_write_formula, None))
