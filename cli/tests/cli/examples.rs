//! The examples of `host/examples`, one stage each: they run, and print the promised words.

use crate::support::{finish, plugin_library};
use std::path::Path;
use std::process::Command;

/// Each example, with words from its output.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("01_list", &["cpu: ABI 0.", "cpu:0 is a cpu"]),
    ("02_load", &["option streams = inline", "refused: "]),
    ("03_import", &["input ", "output ", " Conv", "devbay-program 1"]),
    ("04_plan", &["a section of ", "arena "]),
    ("05_run", &["f32[1,10]", "bytes at most"]),
    ("06_run_async", &["21 runs; the largest score of the first is Some("]),
    ("08_two_devices", &["copy to cpu:1 for node_Conv_3", "runs on cpu:1", "on one device and on two: true"]),
    ("07_cancel", &["with a deadline: ", "the deadline passed", "cancelled: ", "the run was cancelled"]),
    (
        "09_on_device",
        &[
            "the scores are on cpu:0",
            "the same as by way of the host: true",
            "no native streams: device cpu:0, plugin cpu: ",
            "probabilities add up to 1.000",
            "by DLPack: [1, 10] on",
        ],
    ),
];

#[test]
fn examples_run_and_print_what_they_promise() {
    let library = plugin_library();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/examples");
    let in_folder = std::fs::read_dir(folder).unwrap().filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "rs")
    });
    assert_eq!(in_folder.count(), EXAMPLES.len(), "an example is not in the list");
    for (name, words) in EXAMPLES {
        let example = library.with_file_name("examples").join(name);
        assert!(example.is_file(), "{} is missing: cargo build -p devbay-host --examples", example.display());
        finish(&mut Command::new(example)).expect(0).prints(words);
    }
}
