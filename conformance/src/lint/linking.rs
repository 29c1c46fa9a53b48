//! Arguments of the linker: names, folders, flags, and the drivers that have to be there.

use super::Report;
use super::checks::{
    NEEDED_DRIVER, NEEDED_PATH, RUNPATH_ABSOLUTE, RUNPATH_RELATIVE, SONAME_MISSING, STACK_EXECUTABLE,
    TEXT_RELOCATIONS, TLS_STATIC,
};
use super::image::Image;
use object::read::elf::ProgramHeader;
use object::{LittleEndian as LE, elf};

/// Libraries that a machine has with a driver or a vendor's toolkit, and else not: their names before `.so`, and whose
/// they are.
const DRIVERS: &[(&str, &str)] = &[
    ("libcuda", "NVIDIA's driver"),
    ("libnvidia-ml", "NVIDIA's driver"),
    ("libcudart", "CUDA's toolkit"),
    ("libnvrtc", "CUDA's toolkit"),
    ("libcublas", "CUDA's toolkit"),
    ("libcublasLt", "CUDA's toolkit"),
    ("libcufft", "CUDA's toolkit"),
    ("libcusolver", "CUDA's toolkit"),
    ("libcusparse", "CUDA's toolkit"),
    ("libcurand", "CUDA's toolkit"),
    ("libcudnn", "cuDNN"),
    ("libnvinfer", "TensorRT"),
    ("libnccl", "NCCL"),
    ("libOpenCL", "an OpenCL driver"),
    ("libvulkan", "a Vulkan driver"),
    ("libEGL", "an OpenGL driver"),
    ("libGL", "an OpenGL driver"),
    ("libamdhip64", "ROCm"),
    ("libhiprtc", "ROCm"),
    ("libhsa-runtime64", "ROCm"),
    ("librocblas", "ROCm"),
    ("libhipblas", "ROCm"),
    ("libhipblaslt", "ROCm"),
    ("libMIOpen", "ROCm"),
    ("librccl", "ROCm"),
    ("libze_loader", "Level Zero"),
    ("libze_intel_gpu", "Intel's driver"),
    ("libsycl", "oneAPI"),
    ("libopenvino", "OpenVINO"),
    ("libxrt_core", "AMD's XRT"),
    ("libxrt_coreutil", "AMD's XRT"),
    ("libhailort", "Hailo's driver"),
    ("libQnnHtp", "Qualcomm's SDK"),
    ("libcdsprpc", "Qualcomm's driver"),
    ("libascendcl", "Ascend's toolkit"),
    ("libnrt", "AWS Neuron's runtime"),
    ("libSynapse", "Habana's driver"),
    ("libtpu", "Google's TPU runtime"),
    ("libmusa", "Moore Threads' driver"),
    ("libcndrv", "Cambricon's driver"),
];

/// Names the driver or toolkit that a library comes with.
pub(super) fn driver_of(library: &str) -> Option<&'static str> {
    let stem = library.split(".so").next().unwrap_or(library);
    DRIVERS.iter().find(|(name, _)| *name == stem).map(|(_, whose)| *whose)
}

/// Folders where systems and package managers install libraries, as opposed to build folders.
const SYSTEM_FOLDERS: &[&str] = &["/usr/", "/lib/", "/lib64/", "/opt/", "/nix/store/", "/gnu/store/"];

pub(super) fn look(image: &Image<'_>, report: &mut Report) {
    for name in image.texts(elf::DT_NEEDED) {
        if let Some(whose) = driver_of(name) {
            report.find(&NEEDED_DRIVER, format!("{name}, which comes with {whose}, is needed at load"));
        } else if name.contains('/') {
            report.find(&NEEDED_PATH, format!("{name} is needed by its path"));
        }
    }
    for (tag, title) in [(elf::DT_RPATH, "RPATH"), (elf::DT_RUNPATH, "RUNPATH")] {
        // The loader takes an empty list for none, and an empty entry of a list for the process's folder.
        let lists = image.texts(tag).filter(|folders| !folders.is_empty());
        for folder in lists.flat_map(|folders| folders.split(':')) {
            look_at_folder(folder, title, report);
        }
    }
    match image.segment(elf::PT_GNU_STACK) {
        None => report.find(&STACK_EXECUTABLE, "PT_GNU_STACK is absent, which means an executable stack"),
        Some(stack) if stack.p_flags(LE).contains(elf::PF_X) => {
            report.find(&STACK_EXECUTABLE, "PT_GNU_STACK asks for an executable stack");
        }
        Some(_) => {}
    }
    let flags = image.value(elf::DT_FLAGS).unwrap_or_default();
    if image.value(elf::DT_TEXTREL).is_some() || flags & elf::DF_TEXTREL.0 != 0 {
        report.find(&TEXT_RELOCATIONS, "relocations in code (DT_TEXTREL)");
    }
    if flags & elf::DF_STATIC_TLS.0 != 0 {
        report.find(&TLS_STATIC, "thread-local variables of the initial-exec model (DF_STATIC_TLS)");
    }
    if image.texts(elf::DT_SONAME).all(str::is_empty) {
        report.find(&SONAME_MISSING, "the library has no name of its own (DT_SONAME)");
    }
}

/// An entry of a list of folders.
fn look_at_folder(folder: &str, title: &str, report: &mut Report) {
    let is_of_library = ["$ORIGIN", "${ORIGIN}"].iter().any(|begin| folder.starts_with(begin));
    if is_of_library {
        return;
    }
    if !folder.starts_with('/') {
        report.find(
            &RUNPATH_RELATIVE,
            format!(
                "{title} has `{folder}`, which is relative to the process's current \
                                              folder"
            ),
        );
    } else if !SYSTEM_FOLDERS.iter().any(|system| format!("{folder}/").starts_with(system)) {
        report.find(&RUNPATH_ABSOLUTE, format!("{title} has {folder}"));
    }
}
