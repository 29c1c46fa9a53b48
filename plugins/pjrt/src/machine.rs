//! Properties of a machine, as far as they decide how libraries are probed and how long a verdict holds.

use std::path::Path;

/// Properties that are read of a machine without loading anything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// Device files of accelerators, sorted, such as `accel0`, `nvidia0` and `vfio/0`.
    pub accelerators: Vec<String>,
    /// True if a TPU may be there; where it is not known it may.
    pub may_have_tpu: bool,
    /// This start of this machine (Linux: `boot_id`); empty where the system has no number for it.
    pub boot: String,
}

impl Machine {
    /// The machine that this process runs on.
    pub fn here() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let machine = Self::of_files(Path::new("/dev"), Path::new("/sys/bus/pci/devices"));
        Self { boot: boot.trim().to_owned(), ..machine }
    }

    /// By folders as Linux's `/dev` and `/sys/bus/pci/devices`.
    ///
    /// A TPU is `/dev/accel0` up to v4 and `/dev/vfio/0` since v5; other devices have such files too, but not Google's
    /// number on the PCI bus.
    pub fn of_files(dev: &Path, pci: &Path) -> Self {
        let accelerators = accelerators(dev);
        let is_tpus = |name: &String| is_numbered(name, "accel") || is_numbered(name, "vfio/");
        let may_have_tpu = accelerators.iter().any(is_tpus) && has_googles(pci).unwrap_or(true);
        Self { accelerators, may_have_tpu, boot: String::new() }
    }
}

/// `accel0` for `accel`.
fn is_numbered(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix);
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()))
}

/// The names in a folder; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Device files of accelerators below `/dev`: TPUs, NVIDIA's GPUs (`dxg` in Windows' Linux) and AMD's, NPUs of the kernel's
/// own class, Neuron and Tenstorrent. `/dev/vfio/vfio` is there without any device.
fn accelerators(dev: &Path) -> Vec<String> {
    let is_top = |name: &String| {
        matches!(&**name, "kfd" | "dxg")
            || ["accel", "nvidia", "neuron"].iter().any(|prefix| is_numbered(name, prefix))
    };
    let mut found: Vec<String> = names(dev).into_iter().filter(is_top).collect();
    for (folder, prefix) in [("vfio", ""), ("accel", "accel"), ("tenstorrent", "")] {
        let numbered = names(&dev.join(folder)).into_iter().filter(|name| is_numbered(name, prefix));
        found.extend(numbered.map(|name| format!("{folder}/{name}")));
    }
    found.sort();
    found
}

/// Returns whether one of Google's devices is on the PCI bus, not counting its disks and network cards, which every
/// machine in its cloud has. `None` if the bus cannot be read.
fn has_googles(pci: &Path) -> Option<bool> {
    let devices = names(pci);
    let read = |device: &String, file: &str| std::fs::read_to_string(pci.join(device).join(file)).ok();
    let is_googles = |device: &String| {
        let class = read(device, "class").unwrap_or_default();
        let is_other = class.starts_with("0x01") || class.starts_with("0x02");
        read(device, "vendor").is_some_and(|vendor| vendor.trim() == "0x1ae0") && !is_other
    };
    (!devices.is_empty()).then(|| devices.iter().any(is_googles))
}
