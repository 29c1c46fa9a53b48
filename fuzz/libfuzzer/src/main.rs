//! Every target of `devbay-fuzz` under libFuzzer: one program, so that what they share is compiled once. The variable
//! `DEVBAY_FUZZ_TARGET` names the target.
#![no_main]

use devbay_fuzz::Target;
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("DEVBAY_FUZZ_TARGET").expect("DEVBAY_FUZZ_TARGET names the target");
        let target = devbay_fuzz::target(&name).unwrap_or_else(|sentence| {
            eprintln!("{sentence}");
            std::process::exit(1)
        });
        TARGET.get_or_init(|| target);
    },
    |data: &[u8]| TARGET.get().expect("libFuzzer calls `init` first")(data)
);
