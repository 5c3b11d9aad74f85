/* trainer_fp32.cu - trainer_amp.cu without its lines AMP 1 to AMP 30: what it was before amp.h */
#define FP32
#include "trainer_amp.cu"
