"""Tests of what is left of TensorFlow's error messages."""

from absl.testing import absltest

from scalable_agents.ops import messages


class MessagesTest(absltest.TestCase):

  def test_tensorflows_additions_go(self):
    for message, wanted in (
        ('plain [1] {text}', 'plain [1] {text}'),
        ('{{function_node __wrapped__SaveV2_device_/CPU:0}} no space [Op:SaveV2]', 'no space'),
        ('closed\n\t [[{{node IteratorGetNext}}]] [Op:__inference_step_1] name: a/b', 'closed'),
        ('cancelled: {{function_node f}} {{function_node g}} the cause [Op:DynamicBatcherCompute] name: ',
         'cancelled: the cause')):
      self.assertEqual(messages.plain_message(message), wanted)

  def test_what_an_op_said_comes_before_its_node(self):
    message = "Graph execution error:\n\nNode: 'Next'\nFrom /job:a:\nno memory\n\t [[{{node Next}}]]\nRecent warning"
    self.assertEqual(messages.op_message(message), 'no memory')
    self.assertEqual(messages.op_message('Connection refused'), '')


if __name__ == '__main__':
  absltest.main()
