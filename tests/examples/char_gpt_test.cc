// The parts of examples/char_gpt: options, text, learning rate, validation loss, generated text, and the training,
// which gives several ranks the model that one process gets. The whole program runs in tests/jobs/examples.py.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <treadle/ddp.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "examples/char_gpt/agreement.h"
#include "examples/char_gpt/generate.h"
#include "examples/char_gpt/learning_rate.h"
#include "examples/char_gpt/time_left.h"
#include "examples/char_gpt/trainer.h"
#include "examples/char_gpt/validation_loss.h"
#include "examples/common/group_of_all.h"
#include "tests/examples/temp_folder.h"
#include "tests/support/seeds.h"
#include "tests/support/tensor_job.h"

namespace char_gpt {
namespace {

using example::CausalTransformer;
using example::TempFolder, example::readFile, example::writeFile;

// The message of the error that `call` throws.
template <class F>
std::string errorOf(F call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

Options optionsOf(std::vector<std::string> arguments) {
  Options options;
  CLI::App app("Trains.", "char_gpt");
  char_gpt::addOptions(app, options);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the last to the first
  app.parse(std::move(arguments));
  return options;
}

TEST(CharGptOptions, QuickYieldsToTheOthersInAnyOrder) {
  const std::vector<std::vector<std::string>> orders = {{"--quick", "--steps", "7", "--width", "12"},
                                                        {"--steps", "7", "--width", "12", "--quick"}};
  for (const std::vector<std::string>& arguments : orders) {
    const Options options = optionsOf(arguments);
    EXPECT_EQ(options.training.steps, 7);
    EXPECT_EQ(options.training.batch, 16);
    EXPECT_EQ(options.model.width, 12);
    EXPECT_EQ(options.model.heads, 2);
  }
}

TEST(CharGptOptions, QuickKeepsTheSeed) { EXPECT_EQ(optionsOf({"--seed", "7", "--quick"}).training.seed, 7u); }

TEST(CharGptOptions, NameSeveralTexts) {
  EXPECT_EQ(optionsOf({"--text", "one", "two", "--float64"}).texts, (std::vector<std::string>{"one", "two"}));
}

TEST(CharGptText, HasANumberForEachOfItsCharacters) {
  const Alphabet alphabet("to be\n\xff");
  EXPECT_EQ(alphabet.size(), 7);
  const at::Tensor tokens = alphabet.encode("\n beot\xff");
  EXPECT_TRUE(at::equal(tokens, at::arange(7, at::kByte))) << "the numbers have the order of the bytes";
  EXPECT_EQ(alphabet.decode(tokens.flip(0)), "\xfftoeb \n");
  EXPECT_THROW(alphabet.encode("a"), std::invalid_argument);
}

TEST(CharGptText, MayHaveAllBytes) {
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  const Alphabet alphabet(all);
  EXPECT_EQ(alphabet.size(), 256);
  EXPECT_EQ(alphabet.decode(alphabet.encode(all)), all);
}

TEST(CharGptText, IsJoinedAndSplitByPosition) {
  TempFolder folder;
  writeFile(folder / "one", "abcdefghijkl");
  writeFile(folder / "two", "mnopqrstu");
  const Corpus corpus = loadCorpus({folder / "two", folder / "one"});
  EXPECT_EQ(corpus.alphabet.decode(corpus.train), "mnopqrstuabcdefghi");
  EXPECT_EQ(corpus.alphabet.decode(corpus.validation), "jkl");
}

TEST(CharGptText, ReadsAFolderWithoutItsLinks) {
  TempFolder folder;
  writeFile(folder / "b", "b");
  writeFile(folder / "a", "a");
  std::filesystem::create_symlink("b", folder / "c");
  std::filesystem::create_directory(folder / "d");
  EXPECT_EQ(filesOf(folder.path()), (std::vector<std::string>{folder / "a", folder / "b"}));
}

TEST(CharGptText, NamesTheOptionWhenThereIsNoText) {
  TempFolder folder;
  const std::string option = "; name texts to learn from with --text FILE...";
  EXPECT_EQ(errorOf([&] { filesOf(folder / "none"); }),
            (folder / "none") + ": the folder cannot be read: No such file or directory" + option);
  std::filesystem::create_symlink("elsewhere", folder / "link");
  EXPECT_EQ(errorOf([&] { filesOf(folder.path()); }),
            folder.path() + ": the folder has no files that are not links" + option);
  EXPECT_EQ(errorOf([&] { loadCorpus({folder / "none"}); }),
            (folder / "none") + ": cannot be read; name a text with --text");
}

TEST(CharGptText, IsRefusedWhenItIsTooShort) {
  TempFolder folder;
  writeFile(folder / "text", std::string(100, 'a'));
  const Corpus corpus = loadCorpus({folder / "text"});
  EXPECT_EQ(errorOf([&] { checkFits(corpus, 9, 81); }), "no error");
  EXPECT_EQ(errorOf([&] { checkFits(corpus, 9, 82); }),
            "the text for the training has 90 characters, and a step needs 91; name a longer text with --text or a "
            "smaller --batch or --length");
  EXPECT_EQ(errorOf([&] { checkFits(corpus, 10, 1); }),
            "the text for the validation has 10 characters, and a window needs 11; name a longer text with --text or a "
            "smaller --length");
}

TEST(CharGptText, IsShownWithoutControlCharacters) {
  EXPECT_EQ(printable("one\f\ttwo\n\x1b[1m\x7f\xc3\xa4"), "one \ttwo\n [1m \xc3\xa4");
}

TEST(CharGptLearningRate, RisesToItsPeakAndFallsWithACosine) {
  const double peak = 0.5;
  for (int64_t step = 0; step < 10; ++step)
    EXPECT_DOUBLE_EQ(learningRateAt(step, 100, peak), peak * static_cast<double>(step + 1) / 10) << step;
  // 90 steps after the peak: a third, half and the whole of the way.
  EXPECT_NEAR(learningRateAt(9 + 30, 100, peak), 0.05 + 0.45 * 0.75, 1e-15);
  EXPECT_NEAR(learningRateAt(9 + 45, 100, peak), 0.05 + 0.45 * 0.5, 1e-15);
  EXPECT_NEAR(learningRateAt(99, 100, peak), 0.05, 1e-15);
  for (int64_t step = 10; step < 100; ++step)
    EXPECT_LT(learningRateAt(step, 100, peak), learningRateAt(step - 1, 100, peak)) << step;
  EXPECT_DOUBLE_EQ(learningRateAt(0, 2, peak), peak);
  EXPECT_NEAR(learningRateAt(1, 2, peak), 0.05, 1e-15);
}

// 40 random characters.
Corpus smallCorpus() {
  const Alphabet alphabet("abcdefgh");
  at::manual_seed(treadle::test::seedOfRun());
  const at::Tensor tokens = at::randint(8, {40}, at::kByte);
  return {alphabet, tokens.narrow(0, 0, 29), tokens.narrow(0, 29, 11)};
}

// In float64. The text above has 23 windows of 6, and an epoch 11 batches of 2: the steps end in the second epoch.
Options smallOptions() {
  Options options;
  options.training = {.steps = 13, .batch = 2, .learningRate = 0.01, .seed = treadle::test::seedOfRun()};
  options.model = {.length = 6, .layers = 1, .width = 8, .heads = 2};
  options.float64 = true;
  return options;
}

TEST(CharGptValidationLoss, IsTheMeanOverWindowsThatDoNotOverlap) {
  const Options options = smallOptions();
  const Corpus corpus = smallCorpus();
  auto model = makeModel(options, corpus);
  // 29 characters: windows of 6 begin at 0, 6, 12 and 18, and each is followed by a character.
  at::NoGradGuard noGradients;
  const at::Tensor text = corpus.train.to(at::kLong);
  double sum = 0;
  for (int64_t first : {0, 6, 12, 18})
    sum += example::nextTokenLoss(model->forward(text.narrow(0, first, 6).unsqueeze(0)),
                                  text.narrow(0, first + 1, 6).unsqueeze(0))
               .item<double>();
  EXPECT_NEAR(validationLoss(*model, corpus.train, 6, {}), sum / 4, 1e-14);
}

TEST(CharGptGenerate, DrawsTheSameTokensForASeed) {
  const Corpus corpus = smallCorpus();
  auto model = makeModel(smallOptions(), corpus);
  const at::Tensor prompt = corpus.validation.narrow(0, 0, 3);
  const at::Tensor text = generate(*model, prompt, {.count = 20, .length = 6, .seed = 1});
  EXPECT_EQ(text.sizes(), (std::vector<int64_t>{20}));
  EXPECT_TRUE(text.ge(0).logical_and(text.lt(8)).all().item<bool>());
  EXPECT_TRUE(at::equal(text, generate(*model, prompt, {.count = 20, .length = 6, .seed = 1})));
  EXPECT_FALSE(at::equal(text, generate(*model, prompt, {.count = 20, .length = 6, .seed = 2})));
  EXPECT_EQ(generate(*model, prompt, {.count = 0, .length = 6}).numel(), 0);
}

// At a temperature near 0 the likeliest token follows always.
TEST(CharGptGenerate, FollowsTheModel) {
  const Corpus corpus = smallCorpus();
  auto model = makeModel(smallOptions(), corpus);
  at::NoGradGuard noGradients;
  at::Tensor expected = corpus.validation.narrow(0, 0, 3).to(at::kLong);
  for (int i = 0; i < 8; ++i) {
    const at::Tensor seen = expected.slice(0, std::max<int64_t>(0, expected.numel() - 6)).unsqueeze(0);
    expected = at::cat({expected, model->forward(seen)[0][-1].argmax().reshape({1})});
  }
  const at::Tensor text = generate(*model, expected.narrow(0, 0, 3), {.count = 8, .length = 6, .temperature = 1e-6});
  EXPECT_TRUE(at::equal(text, expected.narrow(0, 3, 8)));
}

TEST(CharGptTraining, LearnsARepeatedText) {
  Options options = smallOptions();
  options.training.steps = 100;
  options.training.learningRate = 0.03;
  options.training.seed = 5;  // the bound below is for these weights
  Corpus corpus = smallCorpus();
  corpus.train = at::arange(8, at::kByte).repeat({20});
  corpus.validation = at::arange(8, at::kByte).repeat({4});
  auto model = makeModel(options, corpus);
  const double before = validationLoss(*model, corpus.validation, 6, {});
  const Result result = train(*model, corpus, options, {"one process", 4, {}, nullptr});
  EXPECT_GT(before, 1.5);
  EXPECT_LT(result.validationLoss, 0.1);
  EXPECT_EQ(result.validationLoss, validationLoss(*model, corpus.validation, 6, {}));
}

// Trains on so many ranks, and with their windows in one process. Several epochs.
void expectEqualToOneProcess(size_t ranks) {
  const Options options = smallOptions();
  const Corpus corpus = smallCorpus();
  const int64_t windows = options.training.batch;
  auto alone = makeModel(options, corpus);
  const Result expected =
      train(*alone, corpus, options, {"one process", windows * static_cast<int64_t>(ranks), {}, nullptr});

  std::vector<std::string> names;
  std::vector<std::shared_ptr<CausalTransformer>> models;
  for (size_t rank = 0; rank < ranks; ++rank) {
    names.push_back("rank" + std::to_string(rank));
    models.push_back(makeModel(options, corpus));
  }
  treadle::test::TensorJob job(names);
  std::vector<Result> results(ranks);
  job.onAll([&](treadle::Worker& worker) {
    const treadle::ProcessGroup group = example::groupOfAll(worker);
    const auto rank = static_cast<size_t>(group.rank());
    const treadle::DistributedDataParallel<CausalTransformer> replica(models[rank], group);
    results[rank] = train(*models[rank], corpus, options, {"replicas", windows, {group}, nullptr});
  });
  EXPECT_NEAR(results[0].validationLoss, expected.validationLoss, 1e-10);
  for (size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(results[rank].validationLoss, results[0].validationLoss) << "the same bits";
    for (const auto& parameter : alone->named_parameters())
      EXPECT_TRUE(treadle::test::close(models[rank]->named_parameters()[parameter.key()], parameter.value(), 1e-8))
          << parameter.key();
  }
}

// The text has 23 windows, which are no multiple of a batch of 2, 4, 6 or 10.
TEST(CharGptTraining, SeveralRanksEqualOneProcess) {
  for (size_t ranks : {1, 2, 3, 5}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    expectEqualToOneProcess(ranks);
  }
}

TEST(CharGptTraining, RefusesAShortText) {
  const Options options = smallOptions();
  const Corpus corpus = smallCorpus();
  EXPECT_THROW(train(*makeModel(options, corpus), corpus, options, {"one process", 25, {}, nullptr}),
               std::runtime_error);
}

TEST(CharGptTraining, NamesTheLearningRateWhenTheLossIsNotFinite) {
  Options options = smallOptions();
  options.training.learningRate = 1e200;
  const Corpus corpus = smallCorpus();
  const std::string error =
      errorOf([&] { train(*makeModel(options, corpus), corpus, options, {"one process", 2, {}, nullptr}); });
  EXPECT_TRUE(error.starts_with("the validation loss is not finite after step ")) << error;
  EXPECT_TRUE(error.ends_with(": use a lower --lr than 1e+200")) << error;
}

// The steps of the lines, and which of the lines say how long the rest takes.
TEST(CharGptTraining, ShowsTheFirstStepEachTenthAndTheLast) {
  TempFolder folder;
  Options options = smallOptions();
  options.training.steps = 32;
  const Corpus corpus = smallCorpus();
  testing::internal::CaptureStdout();
  {
    example::MetricsFile metrics(folder / "metrics");
    train(*makeModel(options, corpus), corpus, options, {"one process", 2, {}, &metrics});
  }
  std::istringstream shown(testing::internal::GetCapturedStdout()), written(readFile(folder / "metrics"));
  std::string line;
  for (int64_t step : {1, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 32}) {
    ASSERT_TRUE(std::getline(shown, line)) << step;
    EXPECT_TRUE(line.starts_with("one process: step " + std::to_string(step) + " of 32: loss ")) << line;
    EXPECT_EQ(line.ends_with(" s left of this training"), step > 1) << line;
    ASSERT_TRUE(std::getline(written, line)) << step;
    const nlohmann::json row = nlohmann::json::parse(line);
    EXPECT_EQ(row["step"].get<int64_t>(), step);
    EXPECT_EQ(row["training"].get<std::string>(), "one process");
    EXPECT_GT(row["tokens_per_s"].get<double>(), 0);
    EXPECT_GT(row["validation_loss"].get<double>(), 0);
  }
  EXPECT_FALSE(std::getline(shown, line)) << line;
  EXPECT_FALSE(std::getline(written, line)) << line;
}

// A step takes 1 s, and a line 5 s: the steps and lines that are left are counted one by one.
TEST(CharGptTimeLeft, AddsTheStepsAndTheLinesThatAreLeft) {
  for (int64_t steps : {2, 9, 10, 11, 19, 20, 32, 500, 509})
    for (int64_t done = 1; done <= steps; ++done) {
      double seconds = 0;
      int64_t lines = 0;
      for (int64_t step = done + 1; step <= steps; ++step) {
        const bool due = isLineDue(step, steps);
        seconds += due ? 6 : 1;
        lines += due ? 1 : 0;
      }
      ASSERT_EQ(linesAfter(done, steps), lines) << done << " of " << steps;
      ASSERT_EQ(secondsLeft(done, steps, 1, 5), seconds) << done << " of " << steps;
    }
  EXPECT_TRUE(isLineDue(1, 500));
  EXPECT_FALSE(isLineDue(2, 500));
  EXPECT_TRUE(isLineDue(50, 500));
  EXPECT_TRUE(isLineDue(509, 509));
}

TEST(CharGptAgreement, DescriptionsDifferWithTextAndOptions) {
  const Corpus corpus = smallCorpus();
  const std::string expected = describe(smallOptions(), corpus);
  EXPECT_EQ(describe(smallOptions(), smallCorpus()), expected);
  Corpus other = smallCorpus();
  other.train[0] = (other.train[0] + 1).remainder(8);
  EXPECT_NE(describe(smallOptions(), other), expected);
  std::vector<Options> changed(9, smallOptions());
  changed[0].training.steps += 1;
  changed[1].training.batch += 1;
  changed[2].training.learningRate *= 1 + 1e-15;
  changed[3].training.seed += 1;
  changed[4].model.layers += 1;
  changed[5].model.width += 2;
  changed[6].model.heads = 1;
  changed[7].model.length += 1;
  changed[8].float64 = false;
  for (size_t i = 0; i < changed.size(); ++i) EXPECT_NE(describe(changed[i], corpus), expected) << i;
}

// The descriptions travel as in the program.
TEST(CharGptAgreement, NamesTheWorkersThatDiffer) {
  treadle::test::TensorJob job({"worker0", "worker1", "worker2"});
  const Corpus corpus = smallCorpus();
  const Options same = smallOptions();
  std::vector<std::string> errors(3);
  job.onAll([&](treadle::Worker& worker) {
    Options options = same;
    if (worker.self().rank == 1) options.training.batch = 3;
    errors[static_cast<size_t>(worker.self().rank)] =
        errorOf([&] { checkSame(worker.allGather(describe(options, corpus))); });
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(error.starts_with("worker1 trains with other texts or options (40 characters with the hash ")) << error;
    EXPECT_NE(error.find(") than worker0 (40 characters with the hash "), std::string::npos) << error;
    EXPECT_TRUE(error.ends_with("; give all workers the same ones")) << error;
  }
  EXPECT_EQ(errorOf([] { checkSame({{"worker0", "a"}, {"worker1", "a"}}); }), "no error");
}

TEST(CharGptAgreement, ADifferenceHasALimitForEachDtype) {
  EXPECT_EQ(errorOf([] { checkDifference(0.001, false); }), "no error");
  EXPECT_EQ(errorOf([] { checkDifference(5.54e-3, false); }),
            "the validation losses differ by 5.5e-03, more than 0.001: rounding grows with the learning rate and the "
            "steps; if it is the reason, the difference is tiny with --float64");
  EXPECT_EQ(errorOf([] { checkDifference(1e-10, true); }), "no error");
  EXPECT_EQ(
      errorOf([] { checkDifference(2e-10, true); }),
      "the validation losses differ by 2.0e-10, more than 1e-10: either this training increases even such rounding "
      "(use a lower --lr or fewer --steps), or the replicas did not train on the batches of one process");
}

}  // namespace
}  // namespace char_gpt
