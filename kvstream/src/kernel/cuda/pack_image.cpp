// The compiled kernels, carried as data.
#include "kernel/cuda/pack_image.hpp"

asm(R"(
  .section .rodata
  .balign 64
  .globl cokv_pack_image
cokv_pack_image:
  .incbin ")" COKV_PACK_IMAGE R"("
  .byte 0
  .previous
)");
