// gRPC in the cases of bench/rows.py: one process serves, the other calls it and prints lines of JSON. Tensors are
// copied into the message and out of it on both sides, as a program that computes with them has to.
//   grpc_bench --serve unix-abstract:name &
//   grpc_bench --call unix-abstract:name --cases call_empty,identity_40MB --repetitions 20

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <future>
#include <map>
#include <sstream>
#include <stdexcept>

#include "bench/ours/measure.h"
#include "bench/peers/grpc/floats.h"
#include "tensor.grpc.pb.h"

namespace {

Floats tensorOf(const bench::Tensor& message) {
  Floats tensor(message.data().size() / sizeof(float));
  std::memcpy(tensor.values.get(), message.data().data(), tensor.bytes());
  return tensor;
}

void write(const Floats& tensor, bench::Tensor& message) {
  message.set_data(tensor.values.get(), tensor.bytes());
  message.add_shape(static_cast<int64_t>(tensor.count));
}

class Service final : public bench::Worker::Service {
 public:
  void awaitStop() { stop_.get_future().wait(); }

 private:
  grpc::Status Call(grpc::ServerContext*, const bench::Request* request, bench::Tensor* answer) override {
    if (request->function() == "stop") stop_.set_value();
    if (!request->has_tensor()) return grpc::Status::OK;
    Floats tensor = tensorOf(request->tensor());
    write(request->function() == "pointwise" ? pointwise(std::move(tensor)) : std::move(tensor), *answer);
    return grpc::Status::OK;
  }

  std::promise<void> stop_;
};

void serve(const std::string& address) {
  Service service;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  if (!server) throw std::runtime_error("gRPC cannot listen at " + address);
  service.awaitStop();
  server->Shutdown();
}

using Stub = bench::Worker::Stub;

bench::Tensor call(Stub& stub, const bench::Request& request) {
  grpc::ClientContext context;
  bench::Tensor answer;
  grpc::Status status = stub.Call(&context, request, &answer);
  if (!status.ok()) throw std::runtime_error(status.error_message());
  return answer;
}

bench::Series callEmpty(Stub& stub, int repetitions) {
  bench::Request empty;
  return bench::timed(500, 200 * repetitions, [] {}, [&] { call(stub, empty); });
}

bench::Series identity(Stub& stub, int repetitions) {
  Floats tensor(40 << 18);
  return bench::timed(
      3, repetitions, [&] { tensor.fill(); },
      [&] {
        bench::Request request;
        write(tensor, *request.mutable_tensor());
        tensorOf(call(stub, request));
      });
}

// Once, without a warm-up: it takes long.
bench::Series tenPointwise(Stub& stub, int) {
  Floats tensor(40 << 18);
  tensor.fill();
  return bench::timed(
      0, 1, [] {},
      [&] {
        std::vector<std::future<Floats>> answers;
        for (int i = 0; i < 10; ++i)
          answers.push_back(std::async(std::launch::async, [&] {
            bench::Request request;
            request.set_function("pointwise");
            write(tensor, *request.mutable_tensor());
            return tensorOf(call(stub, request));
          }));
        for (auto& answer : answers) answer.get();
      });
}

void measure(const std::string& address, const std::string& cases, int repetitions) {
  static const std::map<std::string, bench::Series (*)(Stub&, int)> known = {
      {"call_empty", &callEmpty}, {"identity_40MB", &identity}, {"pointwise_10x40MB", &tenPointwise}};
  grpc::ChannelArguments limits;
  limits.SetMaxReceiveMessageSize(-1);
  limits.SetMaxSendMessageSize(-1);
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), limits);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)))
    throw std::runtime_error("nobody serves at " + address);
  auto stub = bench::Worker::NewStub(channel);
  std::istringstream names(cases);
  for (std::string name; std::getline(names, name, ',');) bench::print(name, known.at(name)(*stub, repetitions));
  bench::Request stop;
  stop.set_function("stop");
  call(*stub, stop);
}

}  // namespace

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options = {{"--repetitions", "20"}};
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  if (options.count("--serve")) {
    serve(options["--serve"]);
  } else {
    measure(options.at("--call"), options.at("--cases"), std::stoi(options["--repetitions"]));
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "grpc_bench: %s\n", error.what());
  return 1;
}
