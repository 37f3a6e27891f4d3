// Train a compiled step from C++: a class that owns it, errors as exceptions, arrays that the kernels can read.
//
//     gfcompile model.pt --layers 4 --out model_step
//     c++ -std=c++17 -Wall -Wextra -I model_step examples/cpp/train.cpp -L model_step -l:libstep.so
//         -Wl,-rpath,'$ORIGIN/model_step' -o train
//     ./train model_step run.ckpt 100
//
// The images are made up, a brightness a class under noise, so that it runs with every classifier.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gf_step.h"

namespace {

struct StepError : std::runtime_error {
  StepError() : std::runtime_error(gf_error()), code(static_cast<gf_code>(gf_error_code())) {}
  gf_code code;
};

void check(int code) {
  if (code != GF_OK) throw StepError();
}

// Memory at multiples of 64 bytes, since the kernels load whole vectors.
struct Aligned {
  explicit Aligned(std::size_t bytes) : memory(std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free) {
    if (!memory) throw std::bad_alloc();
    std::memset(memory.get(), 0, bytes);
  }
  template <typename T>
  T *as() const { return static_cast<T *>(memory.get()); }
  std::unique_ptr<void, decltype(&std::free)> memory;
};

// The arrays of one kind, in the order in which the step takes them. Channels that a sparse step draws itself are null.
class Arrays {
 public:
  explicit Arrays(gf_kind kind) : kind_(kind) {
    for (int i = 0; i < gf_step_count(kind); ++i) {
      const gf_value *value = gf_step_value(kind, i);
      blocks_.emplace_back(value->bytes);
      pointers_.push_back(std::string("channels") == value->role ? nullptr : blocks_.back().as<void>());
    }
  }
  template <typename T>
  T *of_role(const std::string &role) const {
    for (int i = 0; i < gf_step_count(kind_); ++i)
      if (role == gf_step_value(kind_, i)->role) return blocks_[i].as<T>();
    return nullptr;
  }
  const void *const *taken() const { return pointers_.data(); }
  void *const *given() const { return pointers_.data(); }

 private:
  gf_kind kind_;
  std::vector<Aligned> blocks_;
  std::vector<void *> pointers_;
};

class Step {
 public:
  explicit Step(const std::string &folder, int threads = 0)
      : step_(gf_step_open(folder.c_str(), threads), gf_step_destroy) {
    if (!step_) throw StepError();
  }
  float train(const Arrays &inputs, double lr) {
    float loss;
    check(gf_step_train(step_.get(), inputs.taken(), static_cast<float>(lr), &loss));
    return loss;
  }
  void predict(const Arrays &inputs, const Arrays &outputs) {
    check(gf_step_predict(step_.get(), inputs.taken(), outputs.given()));
  }
  std::vector<float> parameter(const gf_value &value) {
    std::vector<float> values(value.bytes / sizeof(float));
    check(gf_step_get_parameter(step_.get(), value.name, values.data(), value.bytes));
    return values;
  }
  void save(const std::string &path, const gf_progress &progress) {
    check(gf_step_save(step_.get(), path.c_str(), &progress));
  }
  void load(const std::string &path, gf_progress &progress) {
    check(gf_step_load(step_.get(), path.c_str(), &progress));
  }

 private:
  std::unique_ptr<gf_step, decltype(&gf_step_destroy)> step_;
};

// The higher the class, the brighter the image.
void make_batch(const Arrays &arrays, std::size_t size, std::uint32_t seed) {
  std::minstd_rand draw(seed + 1);
  std::uniform_real_distribution<float> noise(-0.5f, 0.5f);
  auto *x = arrays.of_role<float>("input");
  auto *y = arrays.of_role<std::int64_t>("target");
  for (int n = 0; n < gf_step_about()->batch; ++n) {
    y[n] = static_cast<std::int64_t>(draw() % static_cast<unsigned>(gf_step_about()->classes));
    const float brightness = 4 * static_cast<float>(y[n]) / static_cast<float>(gf_step_about()->classes) - 2;
    for (std::size_t i = 0; i < size; ++i) *x++ = brightness + noise(draw);
  }
}

double accuracy(const float *logits, const std::int64_t *labels) {
  const gf_about &about = *gf_step_about();
  int right = 0;
  for (int n = 0; n < about.batch; ++n, logits += about.classes) {
    int best = 0;
    for (int c = 1; c < about.classes; ++c)
      if (logits[c] > logits[best]) best = c;
    right += best == labels[n];
  }
  return static_cast<double>(right) / about.batch;
}

void run(const std::string &folder, const std::string &checkpoint, long steps) {
  const gf_about &about = *gf_step_about();
  Step step(folder);
  Arrays inputs(GF_KIND_INPUT), outputs(GF_KIND_OUTPUT);
  const gf_value &input = *gf_step_value(GF_KIND_INPUT, 0);
  const std::size_t size = input.bytes / sizeof(float) / static_cast<std::size_t>(about.batch);
  if (!about.classes || !inputs.of_role<float>("input")) throw std::runtime_error("this example is for classifiers");
  if (auto *weights = inputs.of_role<float>("sample_weight"))
    for (int n = 0; n < about.batch; ++n) weights[n] = 1;

  gf_progress progress{};
  progress.lr = about.lr;
  if (std::filesystem::exists(checkpoint)) {
    step.load(checkpoint, progress);
    std::cout << "continuing at step " << progress.steps << "\n";
  }
  float loss = 0;
  for (const auto last = progress.steps + steps; progress.steps < last; ++progress.steps) {
    make_batch(inputs, size, static_cast<std::uint32_t>(progress.steps));
    loss = step.train(inputs, progress.lr);
  }
  step.save(checkpoint, progress);
  step.predict(inputs, outputs);
  std::cout << "loss " << loss << " after " << progress.steps << " steps, accuracy "
            << accuracy(outputs.of_role<float>("output"), inputs.of_role<std::int64_t>("target")) << "\n";
  const gf_value &last = *gf_step_value(GF_KIND_GRADIENT, gf_step_count(GF_KIND_GRADIENT) - 1);
  std::cout << last.name << "[0] is " << step.parameter(last)[0] << "\n";
}

}  // namespace

int main(int count, char **words) {
  if (count != 4 || std::atol(words[3]) < 1) {
    std::cerr << "usage: train ARTIFACT CHECKPOINT STEPS\n";
    return 2;
  }
  try {
    run(words[1], words[2], std::atol(words[3]));
  } catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
