# cokv_device_image(TARGET NAME KERNELS.cu HEADERS...): kernels compiled for devices alone, under the target's src, that it
# carries as data, cokv_NAME_image, for the runtime to load where there is a device.
find_program(COKV_NVCC_HOST NAMES g++-12 g++ DOC "the host compiler that nvcc is given")
if(COKV_HAVE_CUDA AND CUDAToolkit_NVCC_EXECUTABLE AND COKV_NVCC_HOST AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
  set(COKV_HAVE_DEVICE_CODE ON)
else()
  set(COKV_HAVE_DEVICE_CODE OFF)
endif()

function(cokv_device_image target name)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
  set(carrier ${CMAKE_CURRENT_BINARY_DIR}/${name}_image.cpp)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/src/)
  list(GET ARGN 0 kernels)
  set(runtime ${PROJECT_SOURCE_DIR}/runtime/include)
  add_custom_command(OUTPUT ${image}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -fatbin -std=c++17 -O3 -ccbin ${COKV_NVCC_HOST}
      -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90,code=sm_90
      -I ${CMAKE_CURRENT_SOURCE_DIR}/src -I ${runtime} ${kernels} -o ${image}
    DEPENDS ${ARGN} ${runtime}/cokv/runtime/detail/on_device.hpp
    COMMENT "Compiling the kernels of ${target}" VERBATIM)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/device_image.cpp.in ${carrier} @ONLY)
  set_source_files_properties(${carrier} PROPERTIES OBJECT_DEPENDS ${image} SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE ${carrier})
endfunction()
