# Files as a C++ source: cmake "-DFILES=a;b" -DOUT=web_files.cpp -P embed.cmake (apps/src/view/web_files.hpp).
set(arrays "")
set(rows "")
set(number 0)
foreach(file IN LISTS FILES)
  get_filename_component(name "${file}" NAME)
  file(READ "${file}" bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char file_${number}[] = {\n${bytes}0};\n")
  string(APPEND rows "  if (name == \"${name}\") return text(file_${number}, sizeof file_${number} - 1);\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE "${OUT}" "#include \"view/web_files.hpp\"

namespace cokv::view {
namespace {

${arrays}
std::string_view text(const unsigned char* bytes, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

std::string_view web_file(std::string_view name) {
${rows}  return {};
}

}  // namespace cokv::view
")
