//! The kernels as CUDA C: every text that they have is written, and compiled where there is NVRTC.

mod texts;

use devbay_plugin_cuda::compile::{Arch, Nvrtc};
use devbay_plugin_cuda::source;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn every_kernel_is_written_as_cuda_c() {
    let (texts, silent) = texts::all();
    // Those whose operands' shapes have to fit together in a way of their own.
    eprintln!("{} texts; kernels without one: {silent:?}", texts.len());
    assert!(texts.len() > 300, "{} texts", texts.len());
    let shuffled = texts.iter().filter(|(_, wgsl)| wgsl.contains("subgroupShuffleXor")).count();
    assert!(shuffled > 10, "{shuffled} texts fold by shuffles");
    for (name, wgsl) in &texts {
        let source = source::from_wgsl(name, wgsl).unwrap_or_else(|e| panic!("{e}\n{wgsl}"));
        assert!(source.text.contains(&source.entry), "{name}");
    }
}

/// Returns NVRTC; None where it is missing and not required.
///
/// # Panics
/// If it is missing, with `nvrtc` among the words of `DEVBAY_REQUIRE`.
fn nvrtc() -> Option<Nvrtc> {
    let path = std::env::var_os("DEVBAY_NVRTC").map(PathBuf::from);
    match Nvrtc::open(path.as_deref(), None) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
            let is_required = required.split(|c: char| !c.is_alphanumeric()).any(|word| word == "nvrtc");
            assert!(!is_required, "expected nvrtc, which DEVBAY_REQUIRE asks for: {}", error.text());
            eprintln!("skipped: {}", error.text());
            None
        }
    }
}

/// Kernels that are compiled at once: most of the time of a small one goes into the prelude.
const BATCH: usize = 32;

/// An older architecture, and a newer one.
const ARCHS: [Arch; 2] = [Arch(8, 0), Arch(9, 0)];

/// No text asks which architecture it is compiled for, so that one for each says enough: the two take turns.
#[test]
fn every_kernel_compiles() {
    compile(|i| &ARCHS[i % 2..][..1]);
}

#[test]
#[ignore = "full: the other architecture of each"]
fn every_kernel_compiles_for_two_architectures() {
    compile(|_| &ARCHS);
}

/// Compiles all kernels in batches, each for the architectures that it is to be for.
fn compile(archs: impl Fn(usize) -> &'static [Arch]) {
    let Some(nvrtc) = nvrtc() else { return };
    let (texts, _) = texts::all();
    let written: Vec<String> = texts
        .iter()
        .enumerate()
        .map(|(i, (name, wgsl))| {
            let source = source::from_wgsl(&format!("{name}_{i}"), wgsl);
            let text = source.unwrap_or_else(|e| panic!("{e}\n{wgsl}")).text;
            let own = text.strip_prefix(source::PRELUDE).expect("the prelude comes first");
            format!("namespace n{i} {{\n{own}}}\n")
        })
        .collect();
    let jobs: Vec<_> = written
        .chunks(BATCH)
        .enumerate()
        .flat_map(|(i, batch)| archs(i).iter().map(move |arch| (batch, *arch)))
        .collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((batch, arch)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let text = format!("{}{}", source::PRELUDE, batch.concat());
                    let target = nvrtc.target(*arch).unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(target, format!("sm_{arch}"));
                    let image = nvrtc.compile("batch", &text, &target);
                    let image = image.unwrap_or_else(|e| panic!("{e}\n{}", batch.concat()));
                    assert!(image.starts_with(b"\x7fELF"), "no cubin");
                }
            });
        }
    });
    eprintln!("{} kernels in {} jobs", texts.len(), jobs.len());
}
