# An overlay port (vcpkg install amp --overlay-ports=DIR, DIR/amp being this folder, with VERSION in vcpkg.json filled in).
# It has not been run by vcpkg. The headers go into a folder, as Windows has an <amp.h> of its own: #include <amp/amp.h>.
set(VCPKG_BUILD_TYPE release) # headers alone: nothing differs for debug
vcpkg_from_git(OUT_SOURCE_PATH SOURCE_PATH URL URL_OF_THIS_REPOSITORY REF COMMIT_OF_THIS_REPOSITORY)
file(INSTALL "${SOURCE_PATH}/amp.h" "${SOURCE_PATH}/examples/amp_report.h" DESTINATION "${CURRENT_PACKAGES_DIR}/include/amp")
file(INSTALL "${SOURCE_PATH}/amp_kernels.cu" "${SOURCE_PATH}/examples/packaging/cmake/amp-config.cmake"
             "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
