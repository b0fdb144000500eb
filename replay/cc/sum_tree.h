// A sum tree: draws slots with probabilities in proportion to their weights.
#ifndef SCALABLE_AGENTS_REPLAY_CC_SUM_TREE_H_
#define SCALABLE_AGENTS_REPLAY_CC_SUM_TREE_H_

#include <cstdint>
#include <vector>

namespace scalable_agents {

// Schaul et al. 2016, "Prioritized experience replay", appendix B.2.1. Changing a weight and drawing a slot each take
// log2(capacity) steps. Not thread-safe.
//
// Every inner node is the sum of its two children, computed anew whenever one of them changes. So rounding errors do
// not add up, however many weights are changed.
class SumTree {
 public:
  // All weights are 0 at first. `capacity` is the number of slots, >= 1.
  explicit SumTree(int64_t capacity) {
    while (first_leaf_ < capacity) first_leaf_ *= 2;
    sums_.resize(2 * first_leaf_);
  }

  // Changes the weight of a slot. It must be finite and not negative.
  void Set(int64_t slot, double weight) {
    int64_t node = first_leaf_ + slot;
    sums_[node] = weight;
    while ((node /= 2) > 0) sums_[node] = sums_[2 * node] + sums_[2 * node + 1];
  }

  double Get(int64_t slot) const { return sums_[first_leaf_ + slot]; }
  double total() const { return sums_[1]; }

  // Returns the slot to which `mass`, in [0, total()), belongs: with the weights laid out one after the other, slot i
  // has the interval from the sum of the weights before it to the sum including it. Never returns a slot of weight 0,
  // as long as total() > 0.
  int64_t Find(double mass) const {
    int64_t node = 1;
    while (node < first_leaf_) {
      const int64_t left = 2 * node;
      if (mass < sums_[left] || sums_[left + 1] <= 0) {
        node = left;
      } else {
        mass -= sums_[left];
        node = left + 1;
      }
    }
    return node - first_leaf_;
  }

 private:
  int64_t first_leaf_ = 1;    // A power of two.
  std::vector<double> sums_;  // Node i has the children 2i and 2i + 1. The root is 1.
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_SUM_TREE_H_
