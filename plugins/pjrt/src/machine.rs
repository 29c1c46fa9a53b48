//! What a machine has, as far as it decides how libraries are probed and how long a verdict holds.

use std::path::Path;

/// What is read of a machine without loading anything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// Device files of accelerators, sorted, such as `accel0`, `nvidia0` and `vfio/0`.
    pub accelerators: Vec<String>,
    /// This start of this machine (Linux: `boot_id`); empty where the system has no number for it.
    pub boot: String,
}

impl Machine {
    /// The machine that this process runs on.
    pub fn here() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { accelerators: accelerators(Path::new("/dev")), boot: boot.trim().to_owned() }
    }

    /// Whether a TPU may be there. A TPU is `/dev/accel0` up to v4 and `/dev/vfio/0` since v5; other devices have such
    /// files too, so that this is no proof of one.
    pub fn may_have_tpu(&self) -> bool {
        self.accelerators.iter().any(|name| is_numbered(name, "accel") || is_numbered(name, "vfio/"))
    }
}

/// `accel0` for `accel`.
fn is_numbered(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix);
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Device files of accelerators below `/dev`: TPUs, NVIDIA's and AMD's GPUs, NPUs of the kernel's own class, Neuron and
/// Tenstorrent. `/dev/vfio/vfio` is there without any device.
fn accelerators(dev: &Path) -> Vec<String> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let is_top = |name: &String| {
        name == "kfd" || ["accel", "nvidia", "neuron"].iter().any(|prefix| is_numbered(name, prefix))
    };
    let mut found: Vec<String> = names(dev).into_iter().filter(is_top).collect();
    for (folder, prefix) in [("vfio", ""), ("accel", "accel"), ("tenstorrent", "")] {
        let numbered = names(&dev.join(folder)).into_iter().filter(|name| is_numbered(name, prefix));
        found.extend(numbered.map(|name| format!("{folder}/{name}")));
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accelerators_are_known_by_their_files() {
        let dev = std::env::temp_dir().join(format!("devbay-pjrt-dev-{}", std::process::id()));
        let write = |names: &[&str]| {
            for name in names {
                let path = dev.join(name);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                std::fs::write(path, "").expect("a file");
            }
        };
        let found = || Machine { accelerators: accelerators(&dev), boot: String::new() };
        write(&["null", "nvidiactl", "vfio/vfio", "accelerate", "dri/renderD128"]);
        assert_eq!(found(), Machine::default());
        write(&["nvidia0", "kfd", "accel/accel0", "tenstorrent/1"]);
        assert_eq!(found().accelerators, ["accel/accel0", "kfd", "nvidia0", "tenstorrent/1"]);
        assert!(!found().may_have_tpu(), "none of them is a TPU");
        write(&["vfio/12"]);
        assert!(found().may_have_tpu());
        std::fs::remove_dir_all(&dev).expect("the folder");
        write(&["accel3"]);
        assert!(found().may_have_tpu());
        std::fs::remove_dir_all(&dev).expect("the folder");
    }
}
