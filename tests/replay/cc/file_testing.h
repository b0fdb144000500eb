// A file that tests write, read and damage.
#ifndef SCALABLE_AGENTS_TESTS_LEARNER_CC_FILE_TESTING_H_
#define SCALABLE_AGENTS_TESTS_LEARNER_CC_FILE_TESTING_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "replay/cc/replay_file.h"
#include "ops/cc/status.h"

namespace scalable_agents {

// A test with a file of its own, which it deletes.
class FileTest : public testing::Test {
 protected:
  FileTest() : path_(testing::TempDir() + "replay_file_test_" + std::to_string(getpid())) {}
  ~FileTest() override { remove(path_.c_str()); }

  std::string Content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // FNV-1a, to compare a file with what an earlier version wrote.
  static uint64_t Hash(const std::string& content) {
    uint64_t hash = 0xcbf29ce484222325;
    for (char byte : content) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    return hash;
  }

  // Changes bits, cuts off the end, and appends a byte. `restore` must return an error every time.
  void ExpectEveryDamageIsNoticed(const std::function<Status()>& restore) const {
    const std::string content = Content();
    const auto expect_noticed = [&](const std::string& damaged) {
      std::ofstream(path_, std::ios::binary) << damaged;
      const Status status = restore();
      ASSERT_FALSE(status.ok());
      ASSERT_NE(status.message().find(path_), std::string::npos);
    };
    for (size_t place = 0; place < content.size(); place += 97) {
      std::string damaged = content;
      damaged[place] ^= 1 << place % 8;
      expect_noticed(damaged);
      expect_noticed(content.substr(0, place));
    }
    expect_noticed(content + "x");
  }

  // Changes each byte of the header in several ways. `restore` must say every time that the file is damaged.
  void ExpectDamageToTheHeaderIsNamed(const std::function<Status()>& restore) const {
    const std::string content = Content();
    const size_t header_bytes = 8 + Signature().size() + 8;
    for (size_t place = 0; place < header_bytes; ++place) {
      for (int bits : {1, 3, 16, 128, 255}) {
        std::string damaged = content;
        damaged[place] ^= bits;
        std::ofstream(path_, std::ios::binary) << damaged;
        ASSERT_EQ(restore().message(), path_ + ": the file of the replay is damaged") << place << " " << bits;
      }
    }
  }

  // Writes the file of an empty replay as version 1 did.
  void WriteAsVersion1() const {
    const std::string content = Content();
    std::string signature = Signature();
    signature.replace(signature.find(" 2 "), 3, " 1 ");
    Writer writer(path_);
    writer.Text(signature);
    for (size_t place = 8 + signature.size() + 8; place + 8 < content.size(); place += 8) {
      writer.Bytes(content.data() + place, 8);
    }
    ASSERT_TRUE(writer.Finish().ok());
  }

  // The text that the file begins with, after its size.
  std::string Signature() const {
    const std::string content = Content();
    int64_t size;
    memcpy(&size, content.data(), 8);
    return content.substr(8, size);
  }

  const std::string path_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_TESTS_LEARNER_CC_FILE_TESTING_H_
