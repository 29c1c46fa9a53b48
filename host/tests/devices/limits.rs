//! A node's limits are those of the device it runs on, even if other devices of its section allow more.
//!
//! One device of the plugin `queued` has a limit for operands (`bind_max`); the session's own device has none.

use crate::queued::{FORMS, INLINE, N_DEVICES, OWN, SHARED, World};
use devbay_host::internals::core::program::text;
use devbay_host::{ErrorKind, Model, Result, Runtime, Session, SessionOptions, Tensor};
use devbay_plugin_api::sdk::export::LinkedPlugin;
use std::sync::Arc;

/// `%wide` has 32 bytes, all other values 24 or fewer.
const PROGRAM: &str = "devbay-program 1\n\nprogram \"limits\"(%x: i64[3]) {\n  \
    %wide = test.Node@1(%x) as \"widen\" {n = 4}\n  \
    %y = test.Node@1(%wide) as \"narrow\" {n = 2}\n  \
    %z = test.Node@1(%y) as \"go on\" {n = 2}\n  \
    return %z\n}\n";

/// The device that a session is made for, without a limit, and one that has it.
const PAIRS: [(usize, usize); 6] = [
    (INLINE[0], INLINE[1]),
    (INLINE[0], SHARED[0]),
    (INLINE[0], OWN[0]),
    (SHARED[0], SHARED[1]),
    // The second one's memory is that of the section.
    (SHARED[0], INLINE[1]),
    (SHARED[0], OWN[0]),
];

/// A form's devices, one of which takes operands of so many bytes.
fn runtime(name: &str, entry: LinkedPlugin, limited: usize, bytes: usize) -> Runtime {
    let limits: Vec<String> =
        (0..N_DEVICES).map(|i| if i == limited { bytes } else { 0 }.to_string()).collect();
    let option = |key: &str, value: String| (name.to_owned(), key.to_owned(), value);
    let plugin_options = vec![option("world", World::new().option()), option("bind_max", limits.join(","))];
    Runtime::builder().threads(1).link(entry).options(plugin_options).build().unwrap()
}

/// Runs the program, in one section, with a node pinned to another device than the session's.
fn run(runtime: &Runtime, main: usize, node: &str, pinned: usize) -> Result<()> {
    let model = Model::from_program(text::parse(PROGRAM).unwrap());
    let (main, pinned) = (&runtime.devices()[main], &runtime.devices()[pinned]);
    let options =
        SessionOptions { pins: vec![(node.to_owned(), Arc::clone(pinned))], ..SessionOptions::default() };
    let session = Session::with_options(&model, main, options)?;
    let x = Tensor::from_elements(&[3], &[1i64, 2, 3]).unwrap();
    let plan = session.plan_for(&[("x", &x)])?;
    let lanes = &plan.single().expect("one section").section.lanes;
    for device in [main, pinned] {
        assert!(lanes.iter().any(|lane| Arc::ptr_eq(lane, device)), "{} is not in it", device.name());
    }
    session.run(&[("x", &x)]).map(drop)
}

#[test]
fn operands_are_measured_by_their_own_device() {
    for &(name, _, _, entry) in FORMS {
        for (main, limited) in PAIRS {
            let at = format!("{name}, main {main}, limited {limited}");
            let expect = |runtime: &Runtime, node: &str| {
                run(runtime, main, node, limited).unwrap_or_else(|error| panic!("{at}, {node}: {error}"));
            };
            let enough = runtime(name, entry, limited, 32);
            expect(&enough, "widen");
            expect(&enough, "narrow");
            let small = runtime(name, entry, limited, 31);
            let devices = small.devices();
            let device = devices[limited].name();
            // Its result is too large, then its operand.
            for node in ["widen", "narrow"] {
                let at = format!("{at}, {node}");
                let error = run(&small, main, node, limited).expect_err(&at);
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{at}: {error}");
                let text = error.to_string();
                assert!(text.contains("value `wide`") && text.contains(device), "{at}: {text}");
            }
            // Nodes that it does not run are not its business.
            expect(&small, "go on");
        }
    }
}
