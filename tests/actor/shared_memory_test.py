"""Tests of the layout of the memory that workers share with the training process."""

import struct

from absl.testing import absltest
import hypothesis
from hypothesis import strategies as st
import numpy as np

from scalable_agents.actor import shared_memory
from scalable_agents.actor import unroll

_SPECS = st.dictionaries(
    st.text('abcxyz_', min_size=1, max_size=5),
    st.tuples(st.sampled_from(['uint8', 'int32', 'float32', 'float64', 'bool', 'int64']),
              st.lists(st.integers(1, 9), max_size=3)),
    min_size=1, max_size=5)


class LayoutTest(absltest.TestCase):

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(_SPECS)
  def test_fields_lie_side_by_side(self, spec):
    layout = shared_memory.slot_layout(spec)
    self.assertEqual([field.name for field in layout.observation], sorted(spec))
    owner = np.full(layout.slot_bytes, -1)
    owner[:4] = 0  # The action.
    for number, field in enumerate(layout.scalars + layout.observation, start=1):
      size = np.zeros(field.shape, field.dtype).nbytes
      self.assertTrue(np.all(owner[field.offset:field.offset + size] == -1), field)
      self.assertLessEqual(field.offset + size, layout.slot_bytes)
      owner[field.offset:field.offset + size] = number
    for field in layout.observation:
      self.assertEqual((str(field.dtype), list(field.shape)), spec[field.name])
      self.assertEqual(field.offset % 64, 0)  # Neighbours share no cache line.
    self.assertEqual(layout.slot_bytes % 64, 0)

  def test_scalars_lie_where_results_are_written(self):
    layout = shared_memory.slot_layout({'x': ('float32', [2])})
    self.assertEqual([field.name for field in layout.scalars], list(unroll.EnvironmentOutput._fields[:-1]))
    slot = bytearray(layout.slot_bytes)
    shared_memory.ACTION.pack_into(slot, 0, -7)
    shared_memory.RESULT.pack_into(slot, shared_memory.RESULT_OFFSET, 1.5, 0.5, 2.5, 77, True)
    values = {field.name: np.frombuffer(slot, field.dtype, 1, field.offset)[0] for field in layout.scalars}
    self.assertEqual(
        values, {'reward': 1.5, 'discount': 0.5, 'episode_return': 2.5, 'episode_length': 77, 'done': True})
    self.assertEqual(struct.unpack_from('<i', slot)[0], -7)

  def test_blocks_have_a_header_and_the_slots(self):
    layout = shared_memory.slot_layout({'x': ('uint8', [84, 84, 4])})
    self.assertEqual(layout.slot_bytes, 64 + 84 * 84 * 4)
    self.assertEqual(shared_memory.block_bytes(layout, 3), 65536 + 3 * layout.slot_bytes)


class ErrorTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.memory = bytearray(3 * shared_memory.HEADER_BYTES)

  def test_an_error_is_read_as_written(self):
    self.assertEqual(shared_memory.read_error(self.memory), ('', ''))
    shared_memory.write_error(self.memory, 'Error: Ünglück\n', 'Traceback\n  Ünglück\n')
    self.assertEqual(shared_memory.read_error(self.memory), ('Error: Ünglück', 'Traceback\n  Ünglück\n'))

  def test_a_headline_is_one_line_that_begins_as_the_error_does(self):
    shared_memory.write_error(self.memory, 'Error: the reason\n' + 'a stack\n\t' * 100, 'Traceback')
    headline, traceback = shared_memory.read_error(self.memory)
    self.assertStartsWith(headline, 'Error: the reason a stack a stack ')
    self.assertEndsWith(headline, ' …')
    self.assertLess(len(headline), 310)
    self.assertEqual(traceback, 'Traceback')

  def test_the_end_of_a_long_traceback_is_kept_in_the_header(self):
    numbers = shared_memory.numbers(self.memory)
    for place in range(4):
      numbers[place] = place + 1
    shared_memory.write_error(self.memory, 'Error: ü', 'ü' * 50_000 + 'the end')
    headline, traceback = shared_memory.read_error(self.memory)
    self.assertEqual(headline, 'Error: ü')
    self.assertEndsWith(traceback, 'üüü' + 'the end')
    self.assertGreater(len(traceback), 32_000)
    self.assertEqual([shared_memory.read_number(self.memory, place) for place in range(4)], [1, 2, 3, 4])
    self.assertEqual(self.memory[shared_memory.HEADER_BYTES:], bytes(2 * shared_memory.HEADER_BYTES))

  def test_texts_about_as_long_as_the_room(self):
    room = shared_memory.HEADER_BYTES - 64 - len('Error\n') - 1
    for length in range(room - 5, room + 6):
      shared_memory.write_error(self.memory, 'Error', 'x' * length)
      self.assertLen(shared_memory.read_error(self.memory)[1], min(length, room))
    self.assertEqual(self.memory[shared_memory.HEADER_BYTES:], bytes(2 * shared_memory.HEADER_BYTES))


if __name__ == '__main__':
  absltest.main()
