# An overlay port: copy this folder, name the repository and the commit below, then vcpkg install amp
# --overlay-ports=FOLDER. The headers go into a folder, as Windows has an <amp.h> of its own: #include <amp/amp.h>.
set(VCPKG_BUILD_TYPE release) # headers alone: nothing differs for debug
vcpkg_from_git(OUT_SOURCE_PATH SOURCE_PATH URL URL_OF_THIS_REPOSITORY REF COMMIT_OF_THIS_REPOSITORY)
file(INSTALL "${SOURCE_PATH}/amp.h" "${SOURCE_PATH}/examples/amp_report.h" DESTINATION "${CURRENT_PACKAGES_DIR}/include/amp")
file(INSTALL "${SOURCE_PATH}/amp_kernels.cu" "${CMAKE_CURRENT_LIST_DIR}/usage"
             "${SOURCE_PATH}/examples/packaging/cmake/amp-config.cmake"
             "${SOURCE_PATH}/examples/packaging/cmake/amp-config-version.cmake" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
