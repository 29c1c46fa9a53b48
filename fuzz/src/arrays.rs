//! Arrays in the three formats of inputs, selected by the first byte.

use devbay_host::arrays::{read_npy, read_npz};
use devbay_host::internals::import::read_tensor;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((form, rest)) = data.split_first() else { return };
    match form % 3 {
        0 => drop(read_npy(rest)),
        1 => drop(read_tensor(rest.to_vec())),
        _ => {
            // An archive is read from a file.
            let path = std::env::temp_dir().join(format!("devbay-fuzz-{}.npz", std::process::id()));
            if std::fs::write(&path, rest).is_ok() {
                let _ = read_npz(&path);
            }
        }
    }
}
