"""JSON that a run cannot have written is refused with one line, and with the number of the line that is damaged."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.records import json_text


class JsonTextTest(parameterized.TestCase):

  @parameterized.parameters(
      None, True, -7, 2**63 - 1, 1 - 2**63, 1.5, 1e300, -5e-324, 'Infinity', '\u00fc \U0001f600', ([[], {}],),
      ({'a': {'b': [1, 'NaN', None]}},))
  def test_what_a_run_writes_is_read(self, value):
    for ascii_only in (True, False):
      self.assertEqual(json_text.parse(json.dumps(value, ensure_ascii=ascii_only).encode()), value)

  @parameterized.parameters(
      (b'', 1, 'column 1: Expecting value'),
      (b'{"a": 1,\n "b', 2, 'column 2: Unterminated string starting at'),
      (b'[1,\n2] 3', 2, 'column 4: Extra data'),
      (b'[1,\n2,\n\xff]', 3, 'it is not UTF-8'),
      (b'[1,\nInfinity]', 2, 'Infinity: want a finite number, of at most 64 bits if it is whole'),
      (b'[1,\n-Infinity]', 2, '-Infinity: want a finite number, .*'),
      (b'[12,\nNaN]', 2, 'NaN: want a finite number, .*'),
      (b'{"a1e999": 0,\n"b":\n1e999}', 3, '1e999: want a finite number, .*'),
      (b'[1,\n2,-9223372036854775808]', 2, '-9223372036854775808: want a finite number, .*'),
      (b'1' + 400 * b'0', 1, r'10{199}\.\.\.: want a finite number, .*'),
      (b'1' + 5000 * b'0', 1, r'10{199}\.\.\.: want a finite number, .*'),
      (100_000 * b'[', None, 'it is nested too deeply'),
      (100_000 * b'{"a":', None, 'it is nested too deeply'))
  def test_what_no_run_writes_is_refused(self, text, line, message):
    with self.assertRaisesRegex(json_text.JsonError, f'^{message}$') as caught:
      json_text.parse(text)
    self.assertEqual(caught.exception.line, line)

  def test_fields_have_the_kinds_that_are_wanted(self):
    values = {'number': 1.5, 'whole': 2, 'text': 'x', 'flag': True, 'object': {'a': 1, 'b': 2.5}, 'list': [1],
              'nothing': None, 'unprintable': '\ud800'}
    self.assertEqual([json_text.field(values, name, kind) for name, kind in (
        ('number', float), ('whole', float), ('whole', int), ('text', str), ('flag', bool), ('list', list))],
                     [1.5, 2, 2, 'x', True, [1]])
    for name in ('nothing', 'missing'):
      self.assertIsNone(json_text.field(values, name, int, optional=True))
    self.assertEqual(json_text.numbers(values['object']), {'a': 1, 'b': 2.5})
    self.assertEqual(json_text.numbers(values['object'], ['b']), {'b': 2.5})

  @parameterized.parameters(
      ({}, int, '"name": missing: want a whole number'), ({'name': None}, str, '"name": None: want text'),
      ({'name': 1.0}, int, '"name": 1.0: want a whole number'), ({'name': True}, float, '"name": True: want a number'),
      ({'name': '\ud800'}, str, '"name": .*: want text'), ({'name': []}, dict, r'"name": \[\]: want an object'),
      ({'name': 0}, bool, '"name": 0: want true or false'), ({'name': 'a\nb'}, list, '"name": a b: want a list'),
      ([], int, r'\[\]: want an object'), ('name', int, 'name: want an object'))
  def test_other_fields_are_refused(self, values, kind, message):
    with self.assertRaisesRegex(ValueError, f'^{message}$'):
      json_text.field(values, 'name', kind)

  @parameterized.parameters((7,), ({'a': 1, 'b': 'x'},), ({'a': None},))
  def test_other_values_are_no_numbers(self, values):
    with self.assertRaises(ValueError):
      json_text.numbers(values)


if __name__ == '__main__':
  absltest.main()
