// Files with the contents of both replays.
#include "replay/cc/replay_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "ops/cc/status.h"
#include "replay/cc/episode_replay.h"
#include "replay/cc/sequence_replay.h"
#include "tests/replay/cc/episode_replay_testing.h"
#include "tests/replay/cc/replay_testing.h"

namespace scalable_agents {
namespace {

// A replay of episodes, for the tests of both.
struct Episodes {
  using Replay = EpisodeReplay;
  using Options = EpisodeReplayOptions;
  static constexpr int kUnreadCounts = 1;  // Of an empty replay in a file of version 2, after the first count.
  static constexpr size_t kFileBytes = 1996;
  static constexpr uint64_t kFileHash = 5192465339944692958u;

  static Options MakeOptions() { return TestEpisodeOptions(100); }

  static std::vector<std::function<void(Options*)>> OtherSettings() {
    return {[](Options* options) { options->capacity = 101; },
            [](Options* options) { options->contents = "of another test"; },
            [](Options* options) { options->components[kFrame].stack = 2; },
            [](Options* options) { options->components.push_back({1, 1, 1}); }};
  }

  // Fills a replay beyond its capacity, from two streams.
  static void Fill(Replay* replay) {
    for (int index = 0; index < 30; ++index) {
      for (const TestStream& stream : Streams()) ASSERT_TRUE(Insert(stream, replay, index, 5).ok());
    }
    std::vector<ReplayedUnroll> unrolls;
    ASSERT_TRUE(replay->Next({-1, -1, -1}, {0, 0, 0}, 0, 1, &unrolls).ok());
  }

  static int64_t Size(const Replay& replay) { return replay.GetStatistics().episodes; }
  static std::vector<TestStream> Streams() { return {{0, {26}}, {1, {7, 1, 30, 13}}}; }
};

// A replay of sequences.
struct Sequences {
  using Replay = SequenceReplay;
  using Options = ReplayOptions;
  static constexpr int kUnreadCounts = 2;
  static constexpr size_t kFileBytes = 6242;
  static constexpr uint64_t kFileHash = 15319196636896004630u;

  // With exponent 1, no power is rounded.
  static Options MakeOptions() { return TestOptions({4, 8, 4, false, 0}, 30, 1); }

  static std::vector<std::function<void(Options*)>> OtherSettings() {
    return {[](Options* options) { options->capacity = 31; },
            [](Options* options) { options->contents = "of another test"; },
            [](Options* options) { options->priority_exponent = 0; },
            [](Options* options) { options->geometry.period = 3; },
            [](Options* options) { options->geometry.cross_episodes = true; },
            [](Options* options) { options->state_offsets = {1}; },
            [](Options* options) { options->rate_limit = {1, 50, 1}; },
            [](Options* options) { options->components[kFrame].stack = 2; }};
  }

  // Fills a replay beyond its capacity, from two streams. A few sequences have no priority yet.
  static void Fill(Replay* replay) {
    for (int index = 0; index < 30; ++index) {
      for (const SequenceStream& stream : Streams()) {
        for (const auto& sequence : stream.Insert(replay, index, 5)) {
          if (sequence->key % 7 == 0) continue;
          ASSERT_TRUE(replay->Update({sequence->key}, {1. + sequence->key % 5}).ok());
        }
      }
    }
    Sample(replay);
  }

  static std::vector<Sampled> Sample(Replay* replay) {
    std::vector<Sampled> sampled;
    EXPECT_TRUE(replay->Sample(50, 7, &sampled).ok());
    return sampled;
  }

  static int64_t Size(const Replay& replay) { return replay.GetStatistics().size; }
  static std::vector<SequenceStream> Streams() { return {{1, {1000}}, {2, {7, 1, 30, 13}}}; }
};

// A test with a saved replay, a file of its own, and a replay that may restore it.
template <typename Kind>
class ReplayFileTest : public testing::Test {
 protected:
  ReplayFileTest() : path_(testing::TempDir() + "replay_file_test_" + std::to_string(getpid())) {}
  ~ReplayFileTest() override { remove(path_.c_str()); }

  void Fill() {
    Kind::Fill(&saved_);
    ASSERT_TRUE(saved_.Save(path_).ok());
  }

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

  // Restores a damaged file. The result must be an error, and an empty replay.
  std::string RestoreDamaged(const std::string& damaged) const {
    std::ofstream(path_, std::ios::binary) << damaged;
    typename Kind::Replay restored(Kind::MakeOptions());
    const Status status = restored.Restore(path_);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(Kind::Size(restored), 0);
    EXPECT_EQ(restored.GetStatistics().bytes, 0);
    return status.message();
  }

  // The text that the file begins with, after its size.
  std::string Signature() const {
    const std::string content = Content();
    int64_t size;
    memcpy(&size, content.data(), 8);
    return content.substr(8, size);
  }

  // Writes the file of an empty replay as an earlier version did.
  void WriteAsVersion(int version) const {
    const std::string content = Content();
    std::string signature = Signature();
    const size_t counts = 8 + signature.size() + 8;  // They come after the header.
    signature.replace(signature.find(" 4 "), 3, " " + std::to_string(version) + " ");
    const std::string contents = " " + Kind::MakeOptions().contents;
    signature.erase(signature.size() - contents.size());
    {
      Writer header(path_);
      header.Text(signature);
      ASSERT_TRUE(header.Finish().ok());
    }
    const std::string checksum = Content().substr(8 + signature.size());
    Writer writer(path_);
    writer.Text(signature);
    if (version > 1) writer.Bytes(checksum.data(), 8);
    for (size_t place = counts; place + 8 < content.size(); place += 8) {
      writer.Bytes(content.data() + place, 8);
      if (place == counts && version < 3) {
        for (int i = 0; i < Kind::kUnreadCounts; ++i) writer.Put<int64_t>(0);
      }
    }
    ASSERT_TRUE(writer.Finish().ok());
  }

  const std::string path_;
  typename Kind::Replay saved_{Kind::MakeOptions()}, restored_{Kind::MakeOptions()};
};

using Kinds = testing::Types<Episodes, Sequences>;
TYPED_TEST_SUITE(ReplayFileTest, Kinds);

// A changed format needs another version, or files of earlier versions would be misread.
TYPED_TEST(ReplayFileTest, TheFormatIsThatOfItsVersion) {
  this->Fill();
  EXPECT_EQ(this->Content().size(), TypeParam::kFileBytes);
  EXPECT_EQ(this->Hash(this->Content()), TypeParam::kFileHash);
}

TYPED_TEST(ReplayFileTest, AnEmptyReplayCanBeSaved) {
  ASSERT_TRUE(this->saved_.Save(this->path_).ok());
  ASSERT_TRUE(this->restored_.Restore(this->path_).ok());
  EXPECT_EQ(TypeParam::Size(this->restored_), 0);
}

TYPED_TEST(ReplayFileTest, FilesOfEarlierVersionsAreRead) {
  for (int version : {1, 2, 3}) {
    ASSERT_TRUE(this->saved_.Save(this->path_).ok());
    this->WriteAsVersion(version);
    EXPECT_TRUE(this->restored_.Restore(this->path_).ok());
    auto options = TypeParam::MakeOptions();
    ++options.capacity;
    EXPECT_EQ(typename TypeParam::Replay(options).Restore(this->path_).code(), StatusCode::kInvalidArgument);
  }
}

TYPED_TEST(ReplayFileTest, DamageToTheHeaderIsNotCalledOtherSettings) {
  this->Fill();
  const std::string content = this->Content();
  const size_t header_bytes = 8 + this->Signature().size() + 8;
  for (size_t place = 0; place < header_bytes; ++place) {
    for (int bits : {1, 3, 16, 128, 255}) {
      std::string damaged = content;
      damaged[place] ^= bits;
      ASSERT_EQ(this->RestoreDamaged(damaged), this->path_ + ": the file of the replay is damaged") << place;
    }
  }
}

// Changes bits, cuts off the end, and appends a byte.
TYPED_TEST(ReplayFileTest, EveryDamageIsNoticed) {
  this->Fill();
  const std::string content = this->Content();
  std::vector<std::string> all = {content + "x"};
  for (size_t place = 0; place < content.size(); place += 97) {
    all.push_back(content);
    all.back()[place] ^= 1 << place % 8;
    all.push_back(content.substr(0, place));
  }
  for (const std::string& damaged : all) ASSERT_NE(this->RestoreDamaged(damaged).find(this->path_), std::string::npos);
}

TYPED_TEST(ReplayFileTest, OtherSettingsAreRefused) {
  ASSERT_TRUE(this->saved_.Save(this->path_).ok());
  for (const auto& change : TypeParam::OtherSettings()) {
    auto options = TypeParam::MakeOptions();
    change(&options);
    const Status status = typename TypeParam::Replay(options).Restore(this->path_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("other settings"), std::string::npos);
  }
}

TYPED_TEST(ReplayFileTest, OnlyAnEmptyReplayIsRestored) {
  this->Fill();
  const int64_t size = TypeParam::Size(this->saved_);
  EXPECT_EQ(this->saved_.Restore(this->path_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(TypeParam::Size(this->saved_), size);
}

TYPED_TEST(ReplayFileTest, ErrorsOfTheSystemNameTheFile) {
  this->Fill();
  const Status status = this->saved_.Save("/dev/full");  // Always says that there is no space left.
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "/dev/full: No space left on device");
  EXPECT_EQ(this->saved_.Save(this->path_ + "/absent/file").code(), StatusCode::kUnavailable);
  EXPECT_EQ(this->restored_.Restore(this->path_ + "_absent").code(), StatusCode::kUnavailable);
}

class EpisodeFileTest : public ReplayFileTest<Episodes> {};

TEST_F(EpisodeFileTest, ARestoredReplayGoesOnWhereTheSavedOneWas) {
  Fill();
  const Status status = restored_.Restore(path_);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<TestStream> streams = Episodes::Streams();
  const EpisodeReplayStatistics was = saved_.GetStatistics(), is = restored_.GetStatistics();
  EXPECT_EQ(is.steps, was.steps);
  EXPECT_EQ(is.episodes, was.episodes);
  EXPECT_EQ(is.inserted_episodes, was.inserted_episodes);
  EXPECT_EQ(is.replayed_unrolls, was.replayed_unrolls);
  EXPECT_EQ(is.streams, 0);
  EXPECT_LE(is.bytes, was.bytes);
  // The same positions give the same unrolls, whether they are valid or not.
  std::vector<int64_t> keys, steps;
  for (int64_t key = 0; key < was.inserted_episodes; ++key) {
    for (int64_t step : {0, 6, 12, 24}) {
      keys.push_back(key);
      steps.push_back(step);
    }
  }
  std::vector<ReplayedUnroll> want, got;
  ASSERT_TRUE(saved_.Next(keys, steps, 7, 1, &want).ok());
  ASSERT_TRUE(restored_.Next(keys, steps, 7, 1, &got).ok());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].parts.size(), want[i].parts.size());
    for (size_t j = 0; j < want[i].parts.size(); ++j) {
      EXPECT_EQ(got[i].parts[j].episode->key, want[i].parts[j].episode->key);
      EXPECT_EQ(got[i].parts[j].episode->stream_row, want[i].parts[j].episode->stream_row);
      EXPECT_EQ(got[i].parts[j].first_step, want[i].parts[j].first_step);
    }
    EXPECT_EQ(Check(restored_, got[i], streams), "");
  }
  // New unrolls of the same streams begin segments of their own, and the oldest episodes make room.
  for (int index = 40; index < 70; ++index) Insert(streams[0], &restored_, index, 5);
  EXPECT_EQ(restored_.GetStatistics().steps, 3 * 26);
  const ReplayedUnroll first = Next(&restored_, was.inserted_episodes, 0);
  EXPECT_EQ(restored_.GetStatistics().inserted_episodes, was.inserted_episodes + 5);
  EXPECT_EQ(Check(restored_, first, streams), "");
}

TEST_F(EpisodeFileTest, AnotherLengthOfUnrollsMayReadTheFile) {
  Fill();
  EpisodeReplayOptions options = Episodes::MakeOptions();
  options.unroll_length = 3;
  EpisodeReplay restored(options);
  EXPECT_TRUE(restored.Restore(path_).ok());
  EXPECT_EQ(restored.GetStatistics().steps, saved_.GetStatistics().steps);
}

TEST_F(EpisodeFileTest, RowsOfAnIncompleteEpisodeAreNotSaved) {
  Insert(Episodes::Streams()[0], &saved_, 0, 5);
  ASSERT_TRUE(saved_.Save(path_).ok());
  ASSERT_TRUE(restored_.Restore(path_).ok());
  EXPECT_EQ(restored_.GetStatistics().rows, 0);
}

class SequenceFileTest : public ReplayFileTest<Sequences> {};

TEST_F(SequenceFileTest, ARestoredReplayGoesOnWhereTheSavedOneWas) {
  Fill();
  const Status status = restored_.Restore(path_);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<SequenceStream> streams = Sequences::Streams();
  const ReplayStatistics was = saved_.GetStatistics(), is = restored_.GetStatistics();
  EXPECT_EQ(is.size, was.size);
  EXPECT_EQ(is.inserted, was.inserted);
  EXPECT_EQ(is.sampled, was.sampled);
  EXPECT_LE(is.bytes, was.bytes);
  // Those that had no priority yet have the largest one, 5. Nobody else would ever set one.
  for (int64_t key = was.inserted - was.size; key < was.inserted; ++key) {
    if (key % 7 == 0) ASSERT_TRUE(saved_.Update({key}, {5}).ok());
  }
  const std::vector<Sampled> want = Sequences::Sample(&saved_), got = Sequences::Sample(&restored_);
  for (size_t i = 0; i < want.size(); ++i) {
    const Sequence& sequence = *got[i].sequence;
    EXPECT_EQ(sequence.key, want[i].sequence->key);
    EXPECT_EQ(sequence.stream_row, want[i].sequence->stream_row);
    EXPECT_EQ(got[i].probability, want[i].probability);
    EXPECT_EQ(got[i].age, want[i].age);
    EXPECT_EQ(streams[sequence.stream_id - 1].Check(restored_, sequence), "");
  }
  // New unrolls of the same streams begin segments of their own, and replace the oldest sequences.
  for (int index = 40; index < 70; ++index) {
    for (const auto& sequence : streams[0].Insert(&restored_, index, 5)) {
      EXPECT_EQ(streams[0].Check(restored_, *sequence, 200), "");
      EXPECT_GE(sequence->key, was.inserted);
    }
  }
  EXPECT_EQ(restored_.GetStatistics().size, 30);
}

TEST_F(SequenceFileTest, RegressionSequencesSavedBeforeAnyHadAPriorityCanBeSampled) {
  ASSERT_FALSE(Sequences::Streams()[0].Insert(&saved_, 0, 20).empty());
  ASSERT_TRUE(saved_.Save(path_).ok());
  EXPECT_FALSE(saved_.MaySample(1).ok());
  ASSERT_TRUE(restored_.Restore(path_).ok());
  const int64_t size = restored_.GetStatistics().size;
  for (const Sampled& sampled : Sequences::Sample(&restored_)) EXPECT_EQ(sampled.probability, 1. / size);
}

}  // namespace
}  // namespace scalable_agents
