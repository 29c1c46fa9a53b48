//! Compiled models; the head's checksum is corrected so that the code after its check is reached.

use devbay_host::{Checks, Model};
use sha2::{Digest, Sha256};

/// Writes the checksum of the layout in `host/src/dbx/form.rs`.
fn repaired(data: &[u8]) -> Vec<u8> {
    let mut file = data.to_vec();
    let covered = file.get(24..32).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let covered = covered.and_then(|covered| usize::try_from(covered).ok());
    if let Some(covered) = covered.filter(|covered| (64..=file.len()).contains(covered)) {
        file[32..64].fill(0);
        let sum = Sha256::digest(&file[..covered]);
        file[32..64].copy_from_slice(&sum);
    }
    file
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let file = repaired(data);
    for checks in [Checks::Head, Checks::Weights] {
        let _ = Model::from_compiled(file.clone(), checks).map(|model| model.program().n_nodes());
    }
}
