// The field's first experiment with gRPC: as bench/ours/seed.cc. What a user has to write beyond the functions
// themselves stands between `// [` and `// ]`, and in tensor.proto; bench/seed.py counts those lines. gRPC has no
// references: for the fetch both processes serve, and the callee is told the key of a tensor and where to ask for it.
//   grpc_seed --own ADDRESS &
//   grpc_seed --own ADDRESS --call ADDRESS_OF_THE_OTHER --sizes 4,40 --repetitions 3

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <fstream>
#include <future>
#include <map>
#include <sstream>
#include <stdexcept>

#include "bench/ours/measure.h"
#include "bench/peers/grpc/floats.h"
#include "tensor.grpc.pb.h"

namespace {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr size_t kFloatsPerMegabyte = 1 << 18;

Floats identity(Floats tensor) { return tensor; }

// [
using Stub = bench::Worker::Stub;

Floats tensorOf(const bench::Tensor& message) {
  Floats tensor(message.data().size() / sizeof(float));
  std::memcpy(tensor.values.get(), message.data().data(), tensor.bytes());
  return tensor;
}

void write(const Floats& tensor, bench::Tensor& message) {
  message.set_data(tensor.values.get(), tensor.bytes());
  message.add_shape(static_cast<int64_t>(tensor.count));
}

void check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

std::unique_ptr<Stub> connect(const std::string& address) {
  grpc::ChannelArguments limits;
  limits.SetMaxReceiveMessageSize(-1);
  limits.SetMaxSendMessageSize(-1);
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), limits);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + kPatience))
    throw std::runtime_error("nobody serves at " + address);
  return bench::Worker::NewStub(channel);
}

Floats fetchFrom(const bench::Key& key) {
  auto stub = connect(key.address());
  grpc::ClientContext context;
  bench::Tensor answer;
  check(stub->Fetch(&context, key, &answer));
  return tensorOf(answer);
}

class Service final : public bench::Worker::Service {
 public:
  void own(const std::string& name, const Floats& tensor) { owned_[name] = &tensor; }
  void awaitStop() { stop_.get_future().wait(); }

 private:
  grpc::Status Call(grpc::ServerContext*, const bench::Request* request, bench::Tensor* answer) override try {
    if (request->function() == "stop") stop_.set_value();
    if (request->function() == "identity") write(identity(tensorOf(request->tensor())), *answer);
    if (request->function() == "pointwise") write(pointwise(tensorOf(request->tensor())), *answer);
    if (request->function() == "fetch") answer->add_shape(static_cast<int64_t>(fetchFrom(request->key()).count));
    return grpc::Status::OK;
  } catch (const std::exception& error) {
    return {grpc::StatusCode::INTERNAL, error.what()};
  }

  grpc::Status Fetch(grpc::ServerContext*, const bench::Key* key, bench::Tensor* answer) override {
    auto found = owned_.find(key->name());
    if (found == owned_.end()) return {grpc::StatusCode::NOT_FOUND, "no tensor is called " + key->name()};
    write(*found->second, *answer);
    return grpc::Status::OK;
  }

  std::promise<void> stop_;
  std::map<std::string, const Floats*> owned_;
};

std::unique_ptr<grpc::Server> serve(Service& service, const std::string& address) {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  if (!server) throw std::runtime_error("gRPC cannot listen at " + address);
  return server;
}

bench::Tensor send(Stub& stub, const bench::Request& request) {
  grpc::ClientContext context;
  bench::Tensor answer;
  check(stub.Call(&context, request, &answer));
  return answer;
}

Floats call(Stub& stub, const std::string& function, const Floats& tensor) {
  bench::Request request;
  request.set_function(function);
  write(tensor, *request.mutable_tensor());
  return tensorOf(send(stub, request));
}

void tenAtOnce(Stub& stub, const std::string& function, const Floats& tensor) {
  std::vector<std::future<Floats>> results;
  for (int i = 0; i < 10; ++i)
    results.push_back(std::async(std::launch::async, [&] { return call(stub, function, tensor); }));
  for (auto& result : results) result.get();
}

void fetchByReference(Stub& stub, Service& service, const std::string& own, const Floats& tensor) {
  service.own("tensor", tensor);
  bench::Request request;
  request.set_function("fetch");
  request.mutable_key()->set_name("tensor");
  request.mutable_key()->set_address(own);
  send(stub, request);
}

void stop(Stub& stub) {
  bench::Request request;
  request.set_function("stop");
  send(stub, request);
}
// ]

using Options = std::map<std::string, std::string>;

size_t availableBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  return 0;
}

// What fails is told, with the case's name.
template <class Body>
bool works(const std::string& name, Body body) try {
  body();
  return true;
} catch (const std::exception& error) {
  std::printf("{\"case\": \"%s\", \"error\": \"%s\"}\n", name.c_str(), error.what());
  std::fflush(stdout);
  return false;
}

template <class Body>
void attempt(const std::string& name, int warmUp, int times, Floats& tensor, Body body) {
  works(name, [&] { bench::print(name, bench::timed(warmUp, times, [&] { tensor.fill(); }, body)); });
}

// Each of the ten has its tensor, its messages and their text in both processes: more than six times in all, as
// measured, so eight are asked for. Where the machine has less, the system would end one of the processes.
bool roomForTen(const std::string& name, const Floats& tensor) {
  size_t needed = 10 * 8 * tensor.bytes() >> 30, available = availableBytes() >> 30;
  if (needed < available) return true;
  std::printf("{\"case\": \"%s\", \"error\": \"not tried, ten at once take about %zu GiB of memory\"}\n", name.c_str(),
              needed);
  std::fflush(stdout);
  return false;
}

void measure(Stub& stub, Service& service, Options& options, size_t size) {
  Floats tensor(size * kFloatsPerMegabyte);
  int repetitions = std::stoi(options["--repetitions"]);
  int few = size > 40 ? 1 : repetitions;  // what takes long is measured once
  std::string at = "_" + std::to_string(size) + "MB";
  if (roomForTen("identity" + at, tensor))
    attempt("identity" + at, 1, few, tensor, [&] { tenAtOnce(stub, "identity", tensor); });
  attempt("fetch" + at, 1, few, tensor, [&] { fetchByReference(stub, service, options["--own"], tensor); });
  if (size > std::stoul(options["--pointwise-up-to"])) return;
  if (roomForTen("pointwise" + at, tensor))
    attempt("pointwise" + at, 0, size > 4 ? 1 : repetitions, tensor, [&] { tenAtOnce(stub, "pointwise", tensor); });
}

}  // namespace

int main(int argc, char** argv) try {
  Options options = {{"--repetitions", "3"}, {"--sizes", "4,40,400"}, {"--pointwise-up-to", "40"}};
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  Service service;
  auto server = serve(service, options.at("--own"));
  if (options.count("--call")) {
    auto stub = connect(options["--call"]);
    std::istringstream sizes(options["--sizes"]);
    for (std::string size; std::getline(sizes, size, ',');) measure(*stub, service, options, std::stoul(size));
    stop(*stub);
  } else {
    service.awaitStop();
  }
  server->Shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "grpc_seed: %s\n", error.what());
  return 1;
}
