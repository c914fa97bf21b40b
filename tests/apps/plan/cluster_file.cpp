#include "plan/cluster_file.hpp"

#include "cokv/runtime/error.hpp"

using namespace cokv;
using plan::parse_cluster;

namespace {

std::string refused(std::string_view text) {
  try {
    (void)parse_cluster(text, "c.json");
  } catch (const config_error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("cluster file: what it says, and what it leaves out") {
  const auto c = parse_cluster(R"({"machines": [
      {"name": "a", "count": 8, "gpus": 4, "gpu": "a100", "memory_bytes": 70e9, "link_bytes_per_second": 270e9,
       "network_bytes_per_second": 12.5e9, "network_seconds": 5e-6, "price_per_hour": 16},
      {"name": "b", "count": 1, "gpus": 1, "network_bytes_per_second": 1e9,
       "gpu": {"memory_bytes": 24e9, "memory_bytes_per_second": 864e9, "pcie_bytes_per_second": 32e9,
               "flops_per_second": 181e12}}]})",
                               "c.json");
  REQUIRE(c.machines.size() == 2);
  const auto& a = c.kind("a");
  CHECK(a.count == 8);
  CHECK(a.memory_bytes() == 280e9);
  CHECK(a.gpu.flops_per_second == 312e12);
  CHECK(a.link_bytes_per_second == 270e9);
  CHECK(a.network_seconds == 5e-6);
  CHECK(a.price_per_hour == 16);
  const auto& b = c.kind("b");
  CHECK(b.memory_bytes() == 24e9);
  CHECK(b.link_bytes_per_second == 32e9);  // PCIe: it has no NVLink
  CHECK(b.network_seconds == 10e-6);
  CHECK(b.price_per_hour == 0);
  CHECK_THROWS_WITH_AS(c.kind("c"), "c is none of the cluster's machines, which are a, b", config_error);
}

TEST_CASE("cluster file: what is missing, negative or contradictory is named with its place") {
  const auto one = [](const std::string& fields) { return R"({"machines": [{)" + fields + "}]}"; };
  const std::string good = R"("name": "a", "count": 1, "gpus": 2, "gpu": "h100", "network_bytes_per_second": 1e9)";
  CHECK(refused(one(good)) == "");
  const std::pair<std::string, std::string> table[] = {
      {"", "c.json: "},
      {"[]", "c.json: "},
      {R"({})", "c.json: machines: missing"},
      {R"({"machines": []})", "c.json: machines: has to have 1 to 1000 kinds"},
      {R"({"machines": [3]})", "c.json: machines[0]"},
      {R"({"machines": [], "links": 3})", "c.json: links: no such field of a cluster"},
      {one(R"("name": "a")"), "c.json: machines[0].count: missing"},
      {one(good + R"(, "gpu_count": 3)"), "c.json: machines[0].gpu_count: no such field of a machine"},
      {one(R"("name": "", "count": 1, "gpus": 2, "gpu": "h100", "network_bytes_per_second": 1e9)"),
       "c.json: machines[0].name:  is not 1 to 64 letters"},
      {one(R"("name": "a\n\u001b[31m", "count": 1, "gpus": 2, "gpu": "h100", "network_bytes_per_second": 1e9)"),
       "c.json: machines[0].name: "},
      {one(R"("name": "a", "count": -1, "gpus": 2, "gpu": "h100", "network_bytes_per_second": 1e9)"),
       "c.json: machines[0].count: "},
      {one(R"("name": "a", "count": 1, "gpus": 0, "gpu": "h100", "network_bytes_per_second": 1e9)"),
       "c.json: machines[0].gpus: "},
      {one(R"("name": "a", "count": 1, "gpus": 2, "gpu": "v100", "network_bytes_per_second": 1e9)"),
       "c.json: machines[0].gpu: v100 is none of a100, h100, h200"},
      {one(R"("name": "a", "count": 1, "gpus": 2, "gpu": {"memory_bytes": -1}, "network_bytes_per_second": 1e9)"),
       "c.json: machines[0].gpu: memory_bytes: "},
      {one(R"("name": "a", "count": 1, "gpus": 2, "gpu": "h100")"),
       "c.json: machines[0].network_bytes_per_second: missing"},
      {one(R"("name": "a", "count": 1, "gpus": 2, "gpu": "h100", "network_bytes_per_second": -5)"),
       "c.json: machines[0].network_bytes_per_second: -5 is not in"},
      {one(good + R"(, "memory_bytes": 100e9)"),
       "c.json: machines[0].memory_bytes: 1e+11 is more than the GPU has, 8e+10"},
      {one(good + R"(, "link_bytes_per_second": 900e9)"),
       "c.json: machines[0].link_bytes_per_second: 9e+11 is more than the GPU's links carry one way, 4.5e+11: does it "
       "count "
       "both ways?"},
      {one(good + R"(, "price_per_hour": -1)"), "c.json: machines[0].price_per_hour: -1 is not in"},
      {R"({"machines": [{)" + good + "}, {" + good + "}]}", "c.json: machines[1].name: a is there twice"},
  };
  for (auto& [text, line] : table) {
    CAPTURE(text);
    const auto said = refused(text);
    CHECK(said.starts_with(line));
    CHECK(said.find('\n') == std::string::npos);
  }
}
