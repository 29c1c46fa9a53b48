//! Probes by a stand-in for the probing program, which answers by the library's file name, and what is kept of them. The
//! real program is tried in the command's tests.

#![cfg(unix)]

#[path = "support/folder.rs"]
mod folder;

use devbay_plugin_pjrt::find::{CreateOption, Named};
use devbay_plugin_pjrt::machine::Machine;
use devbay_plugin_pjrt::plugin::Judge;
use devbay_plugin_pjrt::probe::{Prober, Probing};
use devbay_plugin_pjrt::verdicts::{FAILED_HOLDS, REFUSED_HOLDS, UNANSWERED_HOLDS, Verdict, Verdicts};
use folder::Folder;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Notes how it was called, then behaves as the library's file name says.
const STAND_IN: &str = r#"#!/bin/sh
folder=$(dirname "$0")
echo "$*" >> "$folder/calls"
echo "chatter of a library"
answer() { printf '\ndevbay-probe-result %s\n' "$1"; exit 0; }
devices_failed() {
    answer "{\"name\":\"pjrt\",\"n_devices\":null,\"refusal\":[\"devices-failed\",\"devices failed: $1 (UNAVAILABLE)\"]}"
}
case "$4" in
    */good.so*) answer '{"name":"pjrt","n_devices":2,"refusal":null,"later":1}' ;;
    */refuses.so*) devices_failed 'no PJRT library has a device; x: No chips: (NOT_FOUND)' ;;
    */environment.so*) devices_failed "no PJRT library has a device; x: $TPU_SKIP_MDS_QUERY, cores $(ulimit -H -c)" ;;
    */outdated.so*) answer '{"name":null,"n_devices":null,"refusal":["no-common-version","too old"]}' ;;
    */aborts.so*) echo "FATAL: no chips" >&2; echo "bye" >&2; kill -ABRT $$ ;;
    */throws.so*) echo "it is critical: no board"; echo "Rust cannot catch foreign exceptions" >&2; kill -ABRT $$ ;;
    */exits.so*) echo "last words" >&2; exit 3 ;;
    */hangs.so*) echo "E0001 error: no host"; echo "waiting"; exec sleep 1000 ;;
    */meets.so*)
        touch "$folder/met.$$"
        until [ "$(ls "$folder"/met.* | wc -l)" = 3 ]; do sleep 0.02; done
        answer '{"name":"pjrt","n_devices":1,"refusal":null}' ;;
esac
"#;

/// A stand-in in a folder, with libraries of which only the names count.
struct Rig {
    folder: Folder,
    prober: Prober,
}

impl Rig {
    fn new() -> Self {
        let folder = Folder::new();
        let program = folder.write("stand-in", STAND_IN);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let plugin = PathBuf::from("/the/plugin.so");
        let prober = Prober { program, plugin, limit: Duration::from_secs(60), environment: Vec::new() };
        Self { folder, prober }
    }

    fn library(&self, behaviour: &str) -> Named {
        Named::new("x", self.folder.write(&format!("{behaviour}.so"), behaviour))
    }

    fn probe(&self, behaviour: &str) -> Verdict {
        self.prober.probe(&self.library(behaviour)).unwrap()
    }

    /// Lines with which the program was called, one each.
    fn calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.folder.path("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    fn verdicts(&self) -> Verdicts {
        Verdicts::new(&self.folder.path("cache"), Machine::default())
    }

    fn judge(&self) -> Judge {
        let probing = Probing::By(self.prober.clone());
        Judge { probing, verdicts: Some(self.verdicts()), reprobe: false }
    }
}

#[test]
fn b27_a_probe_tells_what_became_of_the_library() {
    let rig = Rig::new();
    assert_eq!(rig.probe("good"), Verdict::Devices(2));
    assert_eq!(rig.probe("refuses"), Verdict::Refused("No chips: (NOT_FOUND)".to_owned()));
    let failed = |words: &str| Verdict::Failed(format!("it ended the probing process ({words}"));
    assert_eq!(rig.probe("aborts"), failed("signal 6): FATAL: no chips"));
    assert_eq!(rig.probe("throws"), failed("signal 6): it is critical: no board"));
    assert_eq!(rig.probe("exits"), failed("exit status: 3): last words"));
    let json = r#"[{"name":"x","library":"#;
    let call = &rig.calls()[0];
    assert!(call.starts_with(&format!("probe /the/plugin.so --option libraries={json}")), "{call}");
    assert!(call.ends_with("--option probe=off"), "{call}");
}

#[test]
fn b27_a_library_that_hangs_is_left_when_its_time_is_over() {
    let mut rig = Rig::new();
    rig.prober.limit = Duration::from_millis(300);
    let Verdict::Unanswered(reason) = rig.probe("hangs") else { panic!("expected no answer") };
    assert!(reason.contains("did not answer within 300ms") && reason.contains("probe_ms"), "{reason}");
    // A busy machine may not have started the program by then.
    assert!(reason.ends_with(": E0001 error: no host") || reason.ends_with("gives it more)"), "{reason}");
}

#[test]
fn a_probing_program_that_fails_is_not_the_librarys_fault() {
    let mut rig = Rig::new();
    let error = rig.prober.probe(&rig.library("outdated")).unwrap_err().to_string();
    assert!(error.starts_with("not probed: ") && error.ends_with("refused the plugin: too old"), "{error}");
    let judge = rig.judge();
    for _ in 0..2 {
        assert_eq!(judge.admits(&rig.library("outdated")).unwrap_err(), error);
    }
    assert_eq!(rig.calls().len(), 3, "nothing was kept of it");
    rig.prober.program = rig.folder.path("absent");
    let error = rig.prober.probe(&rig.library("good")).unwrap_err().to_string();
    assert!(error.starts_with("not probed: cannot start"), "{error}");
}

#[test]
fn a_child_is_told_to_skip_the_metadata_server_and_writes_no_core() {
    let mut rig = Rig::new();
    rig.prober.environment = vec![("TPU_SKIP_MDS_QUERY", "1")];
    let Verdict::Refused(reason) = rig.probe("environment") else { panic!("expected a refusal") };
    assert!(reason == "1, cores 0" || reason == "1, cores 1", "{reason}");
}

#[test]
fn a_verdict_is_kept_and_renewed_when_the_file_or_the_question_changes() {
    let rig = Rig::new();
    let judge = rig.judge();
    let mut good = rig.library("good");
    for n_probes in [1, 1] {
        assert_eq!(judge.admits(&good), Ok(()));
        assert_eq!(rig.calls().len(), n_probes);
    }
    // A build of the same size at another time, then one of another size at the same time.
    let changed = SystemTime::now() - Duration::from_secs(3600);
    for (content, n_probes) in [("GOOD", 2), ("larger", 3)] {
        std::fs::write(&good.path, content).unwrap();
        let file = std::fs::File::options().write(true).open(&good.path).unwrap();
        file.set_modified(changed).unwrap();
        for _ in 0..2 {
            assert_eq!(judge.admits(&good), Ok(()));
            assert_eq!(rig.calls().len(), n_probes, "{content}");
        }
    }
    good.options.insert("n".to_owned(), CreateOption::Integer(1));
    assert_eq!(judge.admits(&good), Ok(()));
    assert_eq!(rig.calls().len(), 4);
    // Another accelerator, or another start of the machine.
    for machine in [
        Machine { accelerators: vec!["accel0".to_owned()], ..Machine::default() },
        Machine { boot: "2".to_owned(), ..Machine::default() },
    ] {
        let verdicts = Verdicts::new(&rig.folder.path("cache"), machine);
        assert_eq!(verdicts.find(&good, SystemTime::now()), None);
    }
    assert!(rig.verdicts().find(&good, SystemTime::now()).is_some());
}

#[test]
fn a_bad_verdict_is_tried_again_later_and_a_good_one_holds() {
    let rig = Rig::new();
    let verdicts = rig.verdicts();
    let (begin, second) = (SystemTime::now(), Duration::from_secs(1));
    let holds = |verdict: Verdict, after: Duration| {
        let library = rig.library("any");
        verdicts.keep(&library, &verdict, begin).unwrap();
        let found = verdicts.find(&library, begin + after);
        assert!(found.as_ref().is_none_or(|(found, _)| *found == verdict));
        found.is_some()
    };
    let (refused, failed) = (Verdict::Refused("r".to_owned()), Verdict::Failed("f".to_owned()));
    assert!(holds(Verdict::Devices(1), Duration::from_secs(1_000_000_000)));
    assert!(holds(refused.clone(), REFUSED_HOLDS - second) && !holds(refused, REFUSED_HOLDS + second));
    assert!(holds(failed.clone(), FAILED_HOLDS - second) && !holds(failed, FAILED_HOLDS + second));
    let library = rig.library("any");
    assert_eq!(verdicts.find(&library, begin - 2 * second), None, "a verdict from the future");
}

/// A slow disk is slow once.
#[test]
fn a_library_that_does_not_answer_is_left_alone_after_the_second_time() {
    let rig = Rig::new();
    let (verdicts, library) = (rig.verdicts(), rig.library("any"));
    let unanswered = Verdict::Unanswered("u".to_owned());
    let begin = SystemTime::now();
    let after_keeping = |verdict: &Verdict| {
        verdicts.keep(&library, verdict, begin).unwrap();
        let held = |limit: Duration| {
            let second = Duration::from_secs(1);
            let is_kept = |time: Duration| verdicts.find(&library, begin + time).is_some();
            is_kept(limit - second) && !is_kept(limit + second)
        };
        (held(UNANSWERED_HOLDS), held(FAILED_HOLDS))
    };
    assert_eq!(after_keeping(&unanswered), (true, false));
    assert_eq!(after_keeping(&unanswered), (false, true));
    assert_eq!(after_keeping(&unanswered), (false, true));
    after_keeping(&Verdict::Devices(1));
    assert_eq!(after_keeping(&unanswered), (true, false), "it answered in between");
}

#[test]
fn what_was_found_long_ago_is_said_and_can_be_sought_anew() {
    let rig = Rig::new();
    let aborts = rig.library("aborts");
    let keep = |verdict: &Verdict, age: u64| {
        let found_at = SystemTime::now() - Duration::from_secs(age);
        rig.verdicts().keep(&aborts, verdict, found_at).unwrap();
    };
    let old = Verdict::Failed("it crashed".to_owned());
    keep(&old, 3 * 3600 + 60);
    let reason = rig.judge().admits(&aborts).unwrap_err();
    assert_eq!(reason, "it crashed; found 3 h ago, --plugin-option pjrt.reprobe=on tries again");
    let again = Judge { reprobe: true, ..rig.judge() };
    assert!(again.admits(&aborts).unwrap_err().contains("FATAL: no chips"));
    assert_eq!(rig.calls().len(), 1);
    // It was found this moment.
    assert!(again.admits(&aborts).unwrap_err().contains("FATAL: no chips"));
    assert_eq!(rig.calls().len(), 1);
}

#[test]
fn a_damaged_verdict_is_none() {
    let rig = Rig::new();
    let judge = rig.judge();
    let good = rig.library("good");
    for (n, content) in ["", "{", "null", "[1, 2, 3]", "\u{fffd}"].iter().enumerate() {
        assert_eq!(judge.admits(&good), Ok(()));
        assert_eq!(rig.calls().len(), n + 1, "{content}");
        let files: Vec<_> = std::fs::read_dir(rig.folder.path("cache/pjrt")).unwrap().collect();
        assert_eq!(files.len(), 1, "one verdict, and no part of one");
        std::fs::write(files[0].as_ref().unwrap().path(), content).unwrap();
    }
    // No folder can be made where a file is: nothing is kept, and the library is admitted.
    rig.folder.write("file", "");
    let verdicts = Verdicts::new(&rig.folder.path("file"), Machine::default());
    assert!(verdicts.keep(&good, &Verdict::Devices(1), SystemTime::now()).is_err());
    assert_eq!(Judge { verdicts: Some(verdicts), ..judge }.admits(&good), Ok(()));
}

#[test]
fn without_a_probe_what_a_person_named_is_opened_and_what_was_found_is_not() {
    let rig = Rig::new();
    let named = rig.library("aborts");
    let installed = Named { by_person: false, ..named.clone() };
    let judge = |probing| Judge { probing, verdicts: Some(rig.verdicts()), reprobe: false };
    let missing = judge(Probing::Missing("no program".to_owned()));
    assert_eq!(missing.admits(&named), Ok(()));
    assert_eq!(missing.admits(&installed), Err("not probed: no program".to_owned()));
    let off = judge(Probing::Off);
    assert_eq!((off.admits(&named), off.admits(&installed)), (Ok(()), Ok(())));
    // Another program's findings count here too.
    rig.judge().admits(&named).unwrap_err();
    assert!(missing.admits(&named).is_err());
    assert_eq!(off.admits(&named), Ok(()));
}

#[test]
fn libraries_are_probed_side_by_side_and_judged_in_their_order() {
    let rig = Rig::new();
    // Each probe waits for the two others, so that probes in sequence would never end.
    let meeting = (0..3).map(|n| rig.folder.write(&format!("{n}/meets.so"), ""));
    let mut libraries: Vec<_> = meeting.map(|path| Named::new("x", path)).collect();
    libraries.insert(1, rig.library("refuses"));
    // There is no file, so there is no probe: the loader reports it.
    libraries.push(Named::new("x", "/nowhere/aborts.so"));
    let admitted = rig.judge().admit_all(&libraries);
    let is_admitted: Vec<bool> = admitted.iter().map(Result::is_ok).collect();
    assert_eq!(is_admitted, [true, false, true, true, true], "{admitted:?}");
    assert_eq!(rig.calls().len(), 4);
}

#[test]
fn the_probing_program_is_the_options_then_the_variables() {
    let machine = Machine::default();
    let choose = |program: &str, ms: &str, variable: Option<&str>| {
        Probing::choose(program, ms, &|name| (name == "DEVBAY_PROBE").then_some(variable?.into()), &machine)
    };
    assert_eq!(choose("off", "", Some("/x")), Ok(Probing::Off));
    assert_eq!(choose("", "", Some("off")), Ok(Probing::Off));
    // The plugin is linked into these tests: it is in no file of its own, nor is the command beside them.
    for (program, words) in [("/bin/devbay", "no file of its own"), ("", "beside this program")] {
        let Ok(Probing::Missing(reason)) = choose(program, "", None) else { panic!("expected no probe") };
        assert!(reason.contains(words), "{reason}");
    }
    for wrong in ["0", "-1", "4s"] {
        assert!(choose("off", wrong, None).unwrap_err().contains(wrong));
    }
}

#[test]
fn accelerators_are_known_by_their_files() {
    let folder = Folder::new();
    let (dev, pci) = (folder.path("dev"), folder.path("pci"));
    let files = |names: &[&str]| {
        for name in names {
            folder.write(&format!("dev/{name}"), "");
        }
    };
    let device = |slot: &str, vendor: &str, class: &str| {
        folder.write(&format!("pci/{slot}/vendor"), format!("{vendor}\n"));
        folder.write(&format!("pci/{slot}/class"), format!("{class}\n"));
    };
    let found = || Machine::of_files(&dev, &pci);
    files(&["null", "nvidiactl", "vfio/vfio", "accelerate", "dri/renderD128"]);
    assert_eq!(found(), Machine::default());
    files(&["nvidia0", "kfd", "accel/accel0", "tenstorrent/1"]);
    assert_eq!(found().accelerators, ["accel/accel0", "kfd", "nvidia0", "tenstorrent/1"]);
    assert!(!found().may_have_tpu, "none of them is a TPU's");
    files(&["vfio/12"]);
    assert!(found().may_have_tpu, "without a list of PCI devices it may be a TPU's");
    device("0000:00:01.0", "0x10de", "0x030200");
    device("0000:00:02.0", "0x1ae0", "0x020000");
    device("0000:00:03.0", "0x1ae0", "0x010802");
    assert!(!found().may_have_tpu, "another maker's device, and a disk and a network card of Google's");
    device("0000:00:04.0", "0x1ae0", "0x120000");
    assert!(found().may_have_tpu);
    std::fs::remove_dir_all(&dev).unwrap();
    files(&["accel3"]);
    assert!(found().may_have_tpu);
}
