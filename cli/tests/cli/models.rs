//! The trained models through the command, within its default tolerance.
//!
//! One test per way to run them, so that a failure names the way. The ways differ in the CPU plugin (linked, or loaded from
//! its library), streams (inline or asynchronous), instruction set, and one or two threads. Within a test the cases run one
//! after the other, and all failing ones are listed.
//!
//! The gate covers each pair of two such choices on one case per model, and all cases in one way; baseline instructions are
//! left out, because they take five times as long. [`in_every_way`] covers all combinations.

use crate::support::{
    Case, cases, command, distinct_cases, finish, first_cases, has_isa, plugin_library, root,
};
use std::path::PathBuf;

/// A way to run the models.
#[derive(Clone, Copy)]
struct Way {
    /// True if the plugin is loaded from its library instead of linked.
    loaded: bool,
    /// True if each stream has a thread; otherwise work is done in the call.
    streams_async: bool,
    /// `DEVBAY_CPU_ISA`; None for the best.
    isa: Option<&'static str>,
    threads: usize,
}

impl Way {
    fn arguments(self, library: Option<&PathBuf>) -> Vec<String> {
        let mut arguments = vec!["--threads".to_owned(), self.threads.to_string()];
        match library {
            Some(library) => arguments.extend(["--plugin".to_owned(), library.display().to_string()]),
            None => arguments.extend(["--device".to_owned(), "cpu".to_owned()]),
        }
        if self.streams_async {
            arguments.extend(["--plugin-option".to_owned(), "cpu.streams=async".to_owned()]);
        }
        arguments
    }
}

/// Runs cases, and expects each to match.
fn check(way: Way, cases: &[Case]) {
    let library = way.loaded.then(plugin_library);
    let run = |case: &Case| {
        let mut command = command();
        command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs);
        command.arg("--compare").arg(&case.outputs).args(way.arguments(library.as_ref()));
        if let Some(isa) = way.isa {
            command.env("DEVBAY_CPU_ISA", isa);
        }
        finish(&mut command)
    };
    if let Some(isa) = way.isa.filter(|isa| !has_isa(isa)) {
        // Instruction sets that this processor lacks are refused, without any results.
        run(&cases[0]).expect(6).says(&[&format!("DEVBAY_CPU_ISA asks for {isa}, this processor has")]);
        return;
    }
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let finished = run(case);
            let compared = finished.out.contains("VERDICT") && !finished.out.contains("DIFFERS");
            let passed = finished.code == 0 && compared;
            (!passed).then(|| format!("{}: exit code {}, {}", case.name, finished.code, finished.err.trim()))
        })
        .collect();
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// Defines a test per way: its name, whether the plugin is loaded, whether streams are asynchronous.
macro_rules! ways {
    ($($name:ident: $loaded:literal, $streams_async:literal, $isa:expr, $threads:literal;)*) => {$(
        #[test]
        fn $name() {
            let way = Way { loaded: $loaded, streams_async: $streams_async, isa: $isa, threads: $threads };
            let is_slow = way.isa == Some("baseline");
            check(way, &if is_slow { distinct_cases() } else { first_cases() });
        }
    )*};
}

ways! {
    linked_inline_avx512: false, false, Some("avx512"), 1;
    linked_async_avx2: false, true, Some("avx2"), 1;
    loaded_inline_avx2: true, false, Some("avx2"), 1;
    loaded_async_baseline: true, true, Some("baseline"), 1;
    loaded_async_avx512: true, true, Some("avx512"), 1;
    loaded_async_two_threads: true, true, None, 2;
}

/// The best instructions of this processor, the default.
#[test]
fn linked_inline_with_every_case() {
    check(Way { loaded: false, streams_async: false, isa: None, threads: 2 }, &cases());
}

/// Pipelines of scikit-learn, with the results of onnxruntime (`models/sklearn`).
#[test]
fn classical_machine_learning() {
    let folders = std::fs::read_dir(root().join("models/sklearn")).expect("the repository has the models");
    let folders = folders.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir());
    let case = |folder: PathBuf| Case {
        name: folder.display().to_string(),
        model: folder.join("model.onnx"),
        inputs: folder.join("case0.inputs.npz"),
        outputs: folder.join("case0.outputs.npz"),
    };
    let cases: Vec<Case> = folders.map(case).collect();
    assert_eq!(cases.len(), 9, "models of models/sklearn/make_models.py");
    check(Way { loaded: false, streams_async: false, isa: None, threads: 2 }, &cases);
}

#[test]
#[ignore = "full: the product, of which the gate has pairs"]
fn in_every_way() {
    let cases = cases();
    for (loaded, streams_async) in [(false, false), (false, true), (true, false), (true, true)] {
        for isa in ["baseline", "avx2", "avx512"] {
            for threads in [1, 2] {
                check(Way { loaded, streams_async, isa: Some(isa), threads }, &cases);
            }
        }
    }
}
