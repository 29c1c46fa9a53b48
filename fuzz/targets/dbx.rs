//! Compiled models, whose head's checksum is made right so that what is behind it is reached.
#![no_main]

use devbay_host::dbx::Checks;
use devbay_host::model::Model;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for checks in [Checks::Head, Checks::Weights] {
        let _ = Model::from_compiled(data.to_vec(), checks).map(|model| model.program().n_nodes());
    }
});
