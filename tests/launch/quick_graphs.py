"""Makes TensorFlow start graphs sooner in the process that imports this: it does not optimise them."""

import tensorflow as tf

tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})
