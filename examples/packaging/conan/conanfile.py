# conan create examples/packaging/conan, in a checkout: a header-only package, amp/VERSION. #include "amp.h"; with
# CMakeDeps find_package(amp) gives amp::amp, and amp_KERNELS, the path of the CUDA source.
import os
import re

from conan import ConanFile
from conan.tools.files import copy, load


class AmpH(ConanFile):
    name = "amp"
    description = "Automatic mixed precision for training loops in C and CUDA, in one header"
    license = "MIT OR Unlicense"
    package_type = "header-library"
    settings = "os"
    no_copy_source = True

    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..", "..")

    def set_version(self):
        parts = re.findall(r"#define AMP_VERSION_\w+ (\d+)", load(self, os.path.join(self._root(), "amp.h")))
        self.version = ".".join(parts)

    def export_sources(self):
        for folder, names in (
            ("", ("amp.h", "amp_kernels.cu", "LICENSE")),
            ("examples", ("amp_report.h",)),
            ("examples/packaging/cmake", ("amp-config.cmake",)),
        ):
            for name in names:
                copy(self, name, os.path.join(self._root(), folder), self.export_sources_folder)

    def package(self):
        for header in ("amp.h", "amp_report.h"):
            copy(self, header, self.source_folder, os.path.join(self.package_folder, "include"))
            copy(self, header, self.source_folder, os.path.join(self.package_folder, "include", "amp"))
        for name in ("amp_kernels.cu", "amp-config.cmake"):
            copy(self, name, self.source_folder, os.path.join(self.package_folder, "share", "amp"))
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        # Read behind Conan's own file for find_package: the target amp, and amp_KERNELS.
        self.cpp_info.set_property("cmake_build_modules", [os.path.join("share", "amp", "amp-config.cmake")])
        if self.settings.get_safe("os") in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["m"]

    def package_id(self):
        self.info.clear()
