//! Every target of `devbay-fuzz` under libFuzzer: one program, so that what they share is compiled once. The variable
//! `DEVBAY_FUZZ_TARGET` names the target.
#![no_main]

use devbay_fuzz::Target;
use devbay_fuzz::mutate::protobuf;
use libfuzzer_sys::{fuzz_crossover, fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::sync::OnceLock;

static TARGET: OnceLock<Target> = OnceLock::new();

/// True if the target's input is protobuf.
static PROTOBUF: OnceLock<bool> = OnceLock::new();

/// Bytes by which libFuzzer may lengthen text within a message.
const GROWTH: usize = 32;

/// One mutation in so many is libFuzzer's own, which need not keep the form.
const OWN_IN: u32 = 8;

fuzz_target!(
    init: {
        let name = std::env::var("DEVBAY_FUZZ_TARGET").expect("DEVBAY_FUZZ_TARGET names the target");
        let target = devbay_fuzz::target(&name).unwrap_or_else(|sentence| {
            eprintln!("{sentence}");
            std::process::exit(1)
        });
        TARGET.get_or_init(|| target);
        PROTOBUF.get_or_init(|| name == "onnx_run");
    },
    |data: &[u8]| TARGET.get().expect("libFuzzer calls `init` first")(data)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let keeps_form = PROTOBUF.get() == Some(&true) && seed % OWN_IN > 0;
    let changed =
        keeps_form.then(|| protobuf::mutate(&data[..size], seed.into(), &mut change_text)).flatten();
    match changed.filter(|changed| (1..=max_size).contains(&changed.len())) {
        Some(changed) => {
            data[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        None => fuzzer_mutate(data, size, max_size),
    }
});

fuzz_crossover!(|first: &[u8], second: &[u8], out: &mut [u8], seed: u32| {
    let crossed =
        (PROTOBUF.get() == Some(&true)).then(|| protobuf::cross(first, second, seed.into())).flatten();
    // Of length 0 is none: libFuzzer draws another mutation.
    let crossed = crossed.filter(|crossed| crossed.len() <= out.len()).unwrap_or_default();
    out[..crossed.len()].copy_from_slice(&crossed);
    crossed.len()
});

/// libFuzzer's own mutations, on text within a message.
fn change_text(text: &mut Vec<u8>) {
    let (len, room) = (text.len(), text.len() + GROWTH);
    text.resize(room, 0);
    let len = fuzzer_mutate(text, len, room);
    text.truncate(len);
}
