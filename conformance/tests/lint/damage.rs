//! Files that are not libraries, and damaged libraries: refused in words, whatever their content.

use crate::{Build, run};
use devbay_conformance::lint::{Report, Settings, lint, lint_bytes};
use devbay_host::{Refusal, RefusalKind};
use proptest::prelude::*;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Returns a library with a constructor, a table of versions, relocations and two needed libraries.
fn whole() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let source = "#include <stdio.h>\n#include <math.h>\n\
                      __attribute__((constructor)) static void start(void) { printf(\"%f\", cos(time)); }\n"
            .replace("time", "(double)(long)stdout");
        let build = Build::new().source("a.c", &source).arguments(&["-lm", "-Wl,-rpath,$ORIGIN/lib"]);
        std::fs::read(build.library()).expect("the library")
    })
}

/// Reads without search folders, so that the result is the same on every machine.
fn read(bytes: &[u8]) -> Result<Report, Refusal> {
    lint_bytes(bytes, "it", None, &Settings::default())
}

#[track_caller]
fn refused(bytes: &[u8], words: &str) {
    let refusal = read(bytes).expect_err("no library");
    assert_eq!(refusal.kind, RefusalKind::NotALibrary);
    assert!(refusal.reason.contains(words), "expected `{words}`: {}", refusal.reason);
}

#[test]
fn other_files_are_refused() {
    refused(b"", "not a library");
    refused(b"devbay-program 1\n\nprogram \"p\"() {}\n", "not a library");
    refused(
        &[[0xcf, 0xfa, 0xed, 0xfe].as_slice(), &[0; 60]].concat(),
        "Mach-O file, which lint does not cover",
    );
    let mut pe = vec![0; 256];
    pe[..2].copy_from_slice(b"MZ");
    pe[0x3c] = 0x80;
    pe[0x80..0x84].copy_from_slice(b"PE\0\0");
    pe[0x80 + 24..0x80 + 26].copy_from_slice(&0x20b_u16.to_le_bytes());
    refused(&pe, "PE file, which lint does not cover");
    let mut other = whole().to_vec();
    other[18] = 183;
    refused(&other, "64 bits for machine 183, which lint does not cover");
    let mut narrow = whole().to_vec();
    narrow[4] = 1;
    refused(&narrow, "32 bits");
    refused(&std::fs::read(std::env::current_exe().expect("this program")).expect("its bytes"), "a program");
}

#[test]
fn objects_and_folders_are_refused() {
    let build = Build::of(&[]).source("a.c", "int x;\n");
    let object = build.folder.join("a.o");
    run(Command::new("cc").arg("-c").args(&build.sources).arg("-o").arg(&object));
    let refusal = |path: &Path| lint(path, &Settings::default()).expect_err("no library");
    assert!(refusal(&object).reason.contains("not a shared library"));
    for path in [build.folder.clone(), build.folder.join("no_such.so")] {
        assert_eq!(refusal(&path).kind, RefusalKind::Unreadable);
    }
}

#[test]
fn libraries_that_were_cut_are_refused() {
    let whole = whole();
    let report = read(whole).expect("a library");
    // After the last segment are tables that no loader reads.
    let header = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().expect("eight bytes")) as usize;
    let loads =
        (64..64 + 56 * usize::from(whole[56])).step_by(56).filter(|&at| whole[at..at + 4] == [1, 0, 0, 0]);
    let end = loads.map(|at| header(at + 8) + header(at + 32)).max().expect("segments");
    for len in (0..end).step_by(97).chain([end - 1]) {
        let refusal = read(&whole[..len]).expect_err("a part of a library");
        assert_eq!(refusal.kind, RefusalKind::NotALibrary, "{len}: {}", refusal.reason);
    }
    for len in (end..whole.len()).step_by(97) {
        assert_eq!(read(&whole[..len]).expect("all that is loaded").findings, report.findings, "{len}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Changes bytes anywhere, most of them in code.
    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40)) {
        let mut bytes = whole().to_vec();
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        let _ = read(&bytes);
    }

    /// Changes words of headers, the dynamic section and its tables to boundary values.
    #[test]
    fn changed_tables_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 0_usize..10, any::<u64>()), 1..6)
    ) {
        let mut bytes = whole().to_vec();
        // The file's parts: the headers, and the tables that `PT_DYNAMIC` points to.
        let header = |at: usize| u64::from_le_bytes(whole()[at..at + 8].try_into().expect("eight bytes")) as usize;
        let n_headers = usize::from(whole()[56]);
        let dynamic = (64..64 + 56 * n_headers).step_by(56).find(|&at| whole()[at..at + 4] == [2, 0, 0, 0]);
        let dynamic = dynamic.expect("a dynamic section");
        let (begin, n_words) = (header(dynamic + 8), header(dynamic + 32) / 8);
        for (at, is_header, which, any) in changes {
            let word = [0, 1, 7, 8, 1 << 31, 1 << 32, u64::MAX, u64::MAX - 7, bytes.len() as u64, any][which];
            let at = if is_header { 8 * at.index(8 + 7 * n_headers) } else { begin + 8 * at.index(n_words) };
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let _ = read(&bytes);
    }
}
