// The TensorFlow op that builds stacks of frames on a CPU. Its Python interface is learner/frame_stacks.py.
#include <string.h>

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/work_sharder.h"

namespace scalable_agents {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;

absl::Status StackShape(tensorflow::shape_inference::InferenceContext* c) {
  tensorflow::shape_inference::ShapeHandle newest, earlier;
  tensorflow::shape_inference::DimensionHandle k, channels;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 3, &newest));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 3, &earlier));
  TF_RETURN_IF_ERROR(c->Add(c->Dim(earlier, 1), 1, &k));
  TF_RETURN_IF_ERROR(c->Multiply(c->Dim(newest, -1), k, &channels));
  TF_RETURN_IF_ERROR(c->ReplaceDim(newest, -1, channels, &newest));
  c->set_output(0, newest);
  return absl::OkStatus();
}

REGISTER_OP("StackFrames")
    .Input("newest: T")
    .Input("earlier: T")
    .Input("done: bool")
    .Output("stacks: T")
    .Attr("T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double}")
    .SetShapeFn(StackShape)
    .Doc(
        "Stacks [T+1, B, ..., k C] of newest frames [T+1, B, ..., C] and of the frames before row 0, [B, k-1, ..., C]. "
        "Where done, [T+1, B], a row starts an episode, and the frames before it are zeros.");

// Puts k frames next to each other along their last axis, which has `unit` bytes in a frame.
void Interleave(const std::vector<const char*>& frames, int64_t bytes, int64_t unit, char* __restrict to) {
  // Atari. The compiler makes wide instructions of a loop with constant strides.
  if (frames.size() == 4 && unit == 1) {
    const char* __restrict a = frames[0], * __restrict b = frames[1];
    const char* __restrict c = frames[2], * __restrict d = frames[3];
    for (int64_t i = 0; i < bytes; ++i) {
      to[4 * i] = a[i];
      to[4 * i + 1] = b[i];
      to[4 * i + 2] = c[i];
      to[4 * i + 3] = d[i];
    }
    return;
  }
  for (int64_t offset = 0; offset < bytes; offset += unit) {
    for (const char* frame : frames) {
      memcpy(to, frame + offset, unit);
      to += unit;
    }
  }
}

class StackFramesOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &newest = context->input(0), &earlier = context->input(1), &done = context->input(2);
    const int axes = newest.dims();
    OP_REQUIRES(context,
                axes >= 3 && earlier.dims() == axes && done.dims() == 2 && done.dim_size(0) == newest.dim_size(0) &&
                    done.dim_size(1) == newest.dim_size(1) && earlier.dim_size(0) == newest.dim_size(1) &&
                    SameFrames(newest.shape(), earlier.shape()),
                InvalidArgument("want newest [T+1, B, ..., C], earlier [B, k-1, ..., C] and done [T+1, B], got ",
                                newest.shape().DebugString(), ", ", earlier.shape().DebugString(), " and ",
                                done.shape().DebugString()));
    const int64_t num_rows = newest.dim_size(0), batch = newest.dim_size(1), kept = earlier.dim_size(1);
    TensorShape shape = newest.shape();
    shape.set_dim(axes - 1, (kept + 1) * newest.dim_size(axes - 1));
    Tensor* stacks;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &stacks));
    if (shape.num_elements() == 0) return;
    const int64_t bytes = newest.TotalBytes() / (num_rows * batch);
    const int64_t unit = newest.dim_size(axes - 1) * tensorflow::DataTypeSize(newest.dtype());
    const char *rows = newest.tensor_data().data(), *before = earlier.tensor_data().data();
    char* to = const_cast<char*>(stacks->tensor_data().data());
    const bool* starts = done.flat<bool>().data();
    const std::vector<char> zeros(bytes);
    const auto fill = [&](int64_t begin, int64_t end) {
      std::vector<const char*> frames(kept + 1);  // The oldest one first.
      for (int64_t place = begin; place < end; ++place) {
        const int64_t t = place / batch, b = place % batch;
        bool in_episode = true;
        for (int64_t age = 0; age <= kept; ++age) {
          const int64_t row = t - age;
          frames[kept - age] = !in_episode ? zeros.data()
                               : row >= 0  ? rows + (row * batch + b) * bytes
                                           : before + (b * kept + kept + row) * bytes;
          in_episode = in_episode && (row < 0 || !starts[row * batch + b]);
        }
        Interleave(frames, bytes, unit, to + place * bytes * (kept + 1));
      }
    };
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(threads.num_threads, threads.workers, num_rows * batch, bytes * (kept + 1), fill);
  }

 private:
  static bool SameFrames(const TensorShape& newest, const TensorShape& earlier) {
    for (int axis = 2; axis < newest.dims(); ++axis) {
      if (newest.dim_size(axis) != earlier.dim_size(axis)) return false;
    }
    return true;
  }
};

REGISTER_KERNEL_BUILDER(Name("StackFrames").Device(tensorflow::DEVICE_CPU), StackFramesOp);

}  // namespace
}  // namespace scalable_agents
