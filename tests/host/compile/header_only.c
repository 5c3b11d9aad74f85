/* The public part alone: nothing but declarations, usable in any unit; included twice. */
#include "amp.h"
#include "amp.h"

typedef int a_unit_needs_one_declaration;
