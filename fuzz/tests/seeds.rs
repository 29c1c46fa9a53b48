//! Every target on its seeds in the repository, on what failed once, and on bytes that are nothing at all.

use std::path::Path;

/// Nothing, and the beginnings of the forms that targets read.
const BYTES: &[&[u8]] = &[b"", b"\0", b"{}", b"\x08\x07", b"\x02PK\x03\x04", b"program", b"DEVBAY\0\0"];

#[test]
fn seeds_and_what_failed_once_end_in_time() {
    for (name, target) in devbay_fuzz::TARGETS {
        for bytes in BYTES {
            target(bytes);
        }
        for folder in ["seeds", "regressions"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name);
            let Ok(files) = std::fs::read_dir(&folder) else { continue };
            for file in files {
                let path = file.expect("a folder can be read").path();
                target(&std::fs::read(&path).expect("a file can be read"));
            }
        }
    }
}

#[test]
fn an_unknown_target_is_told_with_those_that_there_are() {
    let sentence = devbay_fuzz::target("images").expect_err("there is none of that name");
    assert!(sentence.contains("`images`") && sentence.contains("onnx_run"), "{sentence}");
}
