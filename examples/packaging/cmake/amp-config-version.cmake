# find_package(amp 1.2) takes the version that is installed, which is that of its header, if it is 1.2 or a later 1.x;
# a range (1.2...<3), if it lies in there.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../../include/amp/amp.h" amp_numbers LIMIT_COUNT 3 REGEX "^#define AMP_VERSION_")
string(REGEX REPLACE "[^;]* " "" amp_numbers "${amp_numbers}")
list(GET amp_numbers 0 amp_major)
list(JOIN amp_numbers "." PACKAGE_VERSION)
if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
endif()
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
elseif(NOT PACKAGE_FIND_VERSION_RANGE)
    string(COMPARE EQUAL "${PACKAGE_FIND_VERSION_MAJOR}" ${amp_major} PACKAGE_VERSION_COMPATIBLE)
elseif(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION_MAX OR
       (PACKAGE_FIND_VERSION_RANGE_MAX STREQUAL "INCLUDE" AND PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION_MAX))
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
