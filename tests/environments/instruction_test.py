"""Tests of environments/instruction.py."""

from absl.testing import absltest

from scalable_agents.environments import instruction


class InstructionTest(absltest.TestCase):

  def test_instructions_are_filled_up_or_cut_between_characters(self):
    encode = lambda text: bytes(instruction.encode(text))
    self.assertEqual(encode(''), bytes(128))
    self.assertEqual(encode('Pick é'), b'Pick \xc3\xa9' + bytes(121))
    self.assertEqual(encode('x' * 128), b'x' * 128)
    self.assertEqual(encode('x' * 500), b'x' * 128)
    self.assertEqual(encode('x' * 127 + 'é'), b'x' * 127 + b'\0')
    self.assertEqual(encode('x' * 126 + 'éy'), b'x' * 126 + b'\xc3\xa9')
    self.assertEqual(encode('x' * 126 + '\U0001f600'), b'x' * 126 + b'\0\0')

  def test_what_is_encoded_meets_the_spec(self):
    instruction.spec().validate(instruction.encode('pick up the balloon'))
    self.assertEqual(instruction.spec().name, 'instruction')


if __name__ == '__main__':
  absltest.main()
