// What nvcc made of pack_kernel.cu: code for several kinds of devices, which the runtime loads at run time.
#pragma once

extern "C" const unsigned char cokv_pack_image[];
