// What a simulated device can do: the published figures of real ones, or those of a file of one's own.
//
//     auto device = cokv::open_device(context.get_executor(), "sim:h200");
//     auto mine = cokv::open_device(context.get_executor(), "sim:devices/mine.json");
//
//     {"memory_bytes": 24e9, "memory_bytes_per_second": 864e9, "pcie_bytes_per_second": 32e9,
//      "nvlink_bytes_per_second": 0, "flops_per_second": 181e12, "launch_seconds": 3e-6}
//
// | spec | memory | its bandwidth | PCIe, each way | NVLink, each way | dense bf16 | published in |
// |---|---|---|---|---|---|---|
// | a100 | 80 GB  | 2.039 TB/s | 32 GB/s (4.0 x16) | 300 GB/s | 312 TFLOP/s | NVIDIA A100 80GB data sheet, SXM |
// | h100 | 80 GB  | 3.35 TB/s  | 64 GB/s (5.0 x16) | 450 GB/s | 989 TFLOP/s | NVIDIA H100 data sheet, SXM |
// | h200 | 141 GB | 4.8 TB/s   | 64 GB/s (5.0 x16) | 450 GB/s | 989 TFLOP/s | NVIDIA H200 data sheet, SXM |
//
// The sheets give links both ways together and, from H100 on, arithmetic with sparsity: half of either is here.
// launch_seconds is published nowhere and assumed. What a real device reaches lies below its sheet.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cokv::sim {

struct device_spec {
  std::string name;
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  double pcie_bytes_per_second = 0;    // to the host and from it, each
  double nvlink_bytes_per_second = 0;  // to other devices of the host and from them, each; 0: there is none
  double flops_per_second = 0;
  double launch_seconds = 3e-6;  // from one operation of a stream to the next
};

std::optional<device_spec> published_device(std::string_view name);

// From the text of such a file, or from the file: JSON of at most 64 KiB, the fields above, each a number that a device
// could have. nvlink_bytes_per_second and launch_seconds may be left out. Throws config_error, whose line names the
// file and the field.
device_spec parse_device_spec(std::string_view text, const std::string& file);
device_spec read_device_spec(const std::string& file);

}  // namespace cokv::sim
